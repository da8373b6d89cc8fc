"""The typed configuration of a run: its keys, its sources, and the YAML files that set them."""
