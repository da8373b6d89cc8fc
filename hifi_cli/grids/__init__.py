"""Grids: many runs as plain command lines, on one machine or many."""
