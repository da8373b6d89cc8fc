"""The training loop and its parts: device, model, losses, schedule, recorded steps, checkpoint."""
