"""Measure the decode kernels of `turboquant-decode` on a GPU; see `__main__`."""
