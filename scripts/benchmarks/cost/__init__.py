"""scripts/bench scaling: what things cost as there is more of them, as plots and sentences."""
