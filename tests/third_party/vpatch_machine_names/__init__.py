"""An overlay that is not vpatch's own."""
