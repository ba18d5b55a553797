"""Scripts that show, inside a patched image and by its own interpreter, that the overlays do what they are for."""
