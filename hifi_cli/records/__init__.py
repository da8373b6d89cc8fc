"""What a run leaves: its record, its place, and all runs of a directory. Without torch."""
