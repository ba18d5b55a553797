"""Probes: scripts that check, inside a patched image and with its own interpreter, that the overlays work."""
