"""HTTP itself: the server with its bounds, bodies, parameters, errors, and who may call."""
