"""python -m benchmarks NAME: what scripts/bench runs."""

from .main import main

if __name__ == "__main__":
    main()
