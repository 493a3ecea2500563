"""Training with Lightning, for any task."""
