"""Core of the client library: sessions and engines that never wait."""
