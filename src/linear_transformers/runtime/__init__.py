"""Whole jobs: the only code that knows Hydra, files and loggers.

`cli` and `schema` import no torch, so that help and complaints come at once.
"""
