"""Entry point of scripts/demo: python -m pipeline_demo ARCHIVE."""

from .main import main

if __name__ == "__main__":
    main()
