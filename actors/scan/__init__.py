"""The scan: a loop that plans the scans, and workers that ask channels to process what is due."""
