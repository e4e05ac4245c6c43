"""The scan: the loop that plans, and the workers that ask channels to process what is due."""
