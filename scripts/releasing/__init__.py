"""Release: build the wheel and the sdist twice, check them, and install them in empty places."""
