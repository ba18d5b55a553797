"""Why a server does not run what overlays changed: findings on a vLLM, its environment and this machine.

Nothing here changes a vLLM or its environment. What an environment has is read from its files; its interpreter is
asked only for its paths. Only the probes of overlays, which the user asks for, import vLLM, in processes of their own.
"""
