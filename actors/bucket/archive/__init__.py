"""The archive actor: the only process that talks to the bucket."""
