"""The overlays that vpatch ships, one module each, with companion modules in `companions` and probes in `probes`."""
