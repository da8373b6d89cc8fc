"""Grids: hundreds of runs as plain command lines, on one machine or many."""
