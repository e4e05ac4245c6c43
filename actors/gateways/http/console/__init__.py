"""Back end of the console: the data of its pages, live and over time, and their actions."""
