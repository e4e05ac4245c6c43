"""Shipping: the log of ticks in the bucket, and the restore of a broker from it."""
