"""`zsq --help`, "Look": top, stats, alarms, audit, peek, message."""
