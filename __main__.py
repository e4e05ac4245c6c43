"""python -m zsq: the same command line as `zsq`."""

from .apps.cli import main

if __name__ == "__main__":
    main()
