"""Build and test images with a Docker engine, or any engine that serves the same API.

Every function here raises `Failure` if the engine refuses, or cannot be reached.
"""
