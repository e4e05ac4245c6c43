"""python -m pipeline_demo ARCHIVE: what scripts/demo runs."""

from .main import main

if __name__ == "__main__":
    main()
