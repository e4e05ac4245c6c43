"""Commands in the help's section "Publish and consume": pub, sub, tail, delayed, redrive."""
