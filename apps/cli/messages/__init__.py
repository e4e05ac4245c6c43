"""`zsq --help`, "Publish and consume": pub, sub, tail, delayed, redrive."""
