"""The storage layer: files on disk. It uses no actor and no socket."""
