"""The gateways: the only processes that listen to the outside."""
