"""Gateways: the only processes that listen to clients from outside."""
