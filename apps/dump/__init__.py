"""Dump of any file of ZSQ or nsqd as readable records. A dump continues after damaged parts."""
