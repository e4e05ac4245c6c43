"""NSQ's wire protocols as pure code: bytes and words in, bytes and words out; sockets and clocks are the shell's."""
