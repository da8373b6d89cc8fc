"""The traces of a run: its record, its place, and all runs of a directory. Without torch."""
