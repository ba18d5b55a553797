"""What an overlay is, and the engine: bytes in, verdicts and bytes out. Nothing here reads or writes a tree."""
