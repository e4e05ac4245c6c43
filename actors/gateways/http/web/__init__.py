"""HTTP layer of the gateway: server, limits, bodies, parameters, errors and permissions."""
