"""What a task is, where its rows come from, how they become batches and scores."""
