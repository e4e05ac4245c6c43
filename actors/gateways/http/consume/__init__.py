"""Consuming by HTTP: messages that are leased by token, and the subscriptions behind them."""
