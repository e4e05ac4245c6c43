"""The client library's core: sessions and engines that never wait."""
