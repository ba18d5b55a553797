"""The network code that `release` and `image` share: an HTTP session, range reading, and error texts."""
