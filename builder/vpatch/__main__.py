"""`python -m vpatch`."""

from vpatch.cli import run

if __name__ == "__main__":
    run()
