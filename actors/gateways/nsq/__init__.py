"""NSQ clients at our door: the shell around transport/nsq, on uvloop."""
