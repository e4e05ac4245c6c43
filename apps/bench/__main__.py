"""python -m zsq.apps.bench NAME: what scripts/bench runs."""

from zsq.apps.bench.main import main

if __name__ == "__main__":
    main()
