"""The overlays that vpatch ships: one module each, and their companion modules in `companions`."""
