"""A package of a user, outside of `src/`: everything that can be of one's own."""
