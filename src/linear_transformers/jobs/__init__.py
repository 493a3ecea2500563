"""Whole jobs: what a command does, from its configuration to its last line.

`cli` imports no torch, so that help and complaints come at once.
"""
