"""What the papers' figures need computed; a kind is a module with `Settings`, `compute` and perhaps `required_runs`."""
