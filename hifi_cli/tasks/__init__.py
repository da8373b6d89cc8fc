"""Tasks: specification, data sources, tokenization, batches, losses and metrics."""
