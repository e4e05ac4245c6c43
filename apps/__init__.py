"""Programs: command line, console, Spark source, tools. The other layers do not import them."""
