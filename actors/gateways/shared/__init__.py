"""Parts that the gateways for NSQ and HTTP share: authentication, and publishes in blocks."""
