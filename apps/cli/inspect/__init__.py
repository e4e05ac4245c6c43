"""Commands in the help's section "Look": top, stats, alarms, audit, peek, message; and seek."""
