"""Settings of topics and channels: their values, bounds and checks."""
