"""Commands in the help's section "Manage", and the settings that they share with other commands."""
