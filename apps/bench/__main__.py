"""python -m zsq.apps.bench NAME: what scripts/bench runs."""

from .main import main

if __name__ == "__main__":
    main()
