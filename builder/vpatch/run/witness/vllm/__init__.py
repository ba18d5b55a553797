"""A package of vLLM's name: if an interpreter finds it, it would find a farm's, too. Nothing imports it."""
