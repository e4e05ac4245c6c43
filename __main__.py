"""python -m zsq: the same command line as `zsq`."""

from zsq.apps.cli import main

if __name__ == "__main__":
    main()
