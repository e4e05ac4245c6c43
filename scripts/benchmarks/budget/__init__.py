"""scripts/bench all: every budget of ZSQ's design beside this machine's result, in one table."""
