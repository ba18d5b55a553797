"""Scripts that an image's own interpreter is given, as text: there, neither vpatch nor its dependencies are."""
