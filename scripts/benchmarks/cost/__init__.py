"""scripts/bench scaling: costs under growing loads, as plots and sentences."""
