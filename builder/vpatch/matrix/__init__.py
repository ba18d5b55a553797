"""Overlays against many vLLMs at once: releases, forks, wheels, trees and git revisions, read where they lie."""
