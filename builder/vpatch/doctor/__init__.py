"""Why a server does not run what overlays changed: findings on a vLLM, its environment and this machine.

Nothing here writes, imports vLLM or imports a plugin. What an environment has is read from its files; its interpreter
is asked only for its paths.
"""
