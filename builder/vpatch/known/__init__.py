"""Error lines and symptoms whose cause is known: those of overlays, and those whose cause no overlay can mend."""
