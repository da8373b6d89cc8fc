"""Finished runs as tables, comparisons, verdicts on claims, and one HTML page."""
