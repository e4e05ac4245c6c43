"""What ZSQ is compared with: bare sockets and files, and other brokers that are on PATH."""
