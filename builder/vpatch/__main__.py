"""`python -m vpatch`."""

from vpatch.cli import main

if __name__ == "__main__":
    main()
