"""The blocking clients: Producer, Consumer, Admin and Reader."""
