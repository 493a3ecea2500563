"""A run on disk: its folder, its checkpoints, and the table of a multirun."""
