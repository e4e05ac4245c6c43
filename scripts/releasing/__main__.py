"""Run the release by `python -m releasing`."""

from .main import main

main()
