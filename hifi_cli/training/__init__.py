"""A run from configuration to results.json."""
