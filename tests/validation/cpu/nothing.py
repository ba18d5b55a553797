"""A probe that finds nothing: it only lets a tree's process be made, and with it the tree's bytecode."""

import sys

if __name__ == "__main__":
    sys.stdout.write("{}")
