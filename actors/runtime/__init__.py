"""Actor runtime: the base class of actors, the start of processes, and watching them."""
