"""The actor runtime: what an actor is, how its process starts and how processes find and watch each other."""
