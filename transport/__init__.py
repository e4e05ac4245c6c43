"""Words between processes, and the client library; knows no file and no actor."""
