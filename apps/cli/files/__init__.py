"""Commands in the help's sections "Keep a copy" and "A stopped broker's files"."""
