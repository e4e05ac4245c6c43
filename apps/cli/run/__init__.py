"""Commands in the help's section "Run a broker": serve, doctor, config, keys; options of serve."""
