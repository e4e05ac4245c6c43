"""Entry point of scripts/bench: python -m benchmarks NAME."""

from .main import main

if __name__ == "__main__":
    main()
