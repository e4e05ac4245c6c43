"""scripts/bench all: every budget of ZSQ's design beside this machine's measurement, in one table."""
