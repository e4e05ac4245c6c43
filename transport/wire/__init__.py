"""Protocol messages between processes, their codec, sockets and addresses."""
