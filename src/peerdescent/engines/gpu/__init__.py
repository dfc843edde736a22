"""Sweeps on a GPU by a kernel of our own; README.md says what it needs and when it pays."""
