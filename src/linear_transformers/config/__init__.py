"""Configurations: what they may say and name, checked before anything is loaded."""
