"""The standby: follows a broker through its bucket, and takes over when that one is gone."""
