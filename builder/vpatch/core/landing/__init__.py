"""Judge inserted code where it lands: every name bound, nothing overridden, the place reachable."""
