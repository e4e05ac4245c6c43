"""`zsq --help`, "Manage": topic, channel, seek, and the settings that they share with other commands."""
