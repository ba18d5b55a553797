"""Build and test with a Docker engine, or one that speaks its API."""
