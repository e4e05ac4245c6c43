"""scripts/bench all: a table of all budgets of ZSQ's design, with the results of this machine."""
