"""Demo of scripts/demo: a year of flights goes through the broker and is checked row by row."""
