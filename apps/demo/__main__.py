"""python -m zsq.apps.demo ARCHIVE: what scripts/demo runs."""

from .main import main

if __name__ == "__main__":
    main()
