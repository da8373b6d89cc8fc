"""Finished runs: one record each, and all of them as one study."""
