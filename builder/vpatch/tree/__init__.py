"""A vLLM on disk: found, read, changed and verified.

`apply` decides with the engine what to change; behind its seam, `Snapshot`, `write_plan` carries that out for an
installed vLLM, `checkout` for a source checkout, and `vpatch.matrix.worker` in memory. Every function of this package
raises `vpatch.errors.Failure`, with all problems, if it cannot read, write or decide.
"""
