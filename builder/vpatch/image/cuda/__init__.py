"""The GPU architectures that an image's compiled extensions are built for."""
