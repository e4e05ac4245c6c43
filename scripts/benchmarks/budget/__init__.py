"""scripts/bench all: every budget of ZSQ's design beside what this machine says to it, in one table."""
