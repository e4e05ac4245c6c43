"""`zsq --help`, "Run a broker": serve, doctor, config, completion, keys, and the options of serve."""
