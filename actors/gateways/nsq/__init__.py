"""NSQ gateway: sockets and the event loop (uvloop) for the protocol logic in transport/nsq."""
