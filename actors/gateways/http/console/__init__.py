"""The console's back end: what its pages show, live and over time, and what they do."""
