"""Tasks: specification, data sources, tokenization, batches and metrics."""
