"""The links of a client: how it finds, watches, and leaves a broker, without waiting."""
