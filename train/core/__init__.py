"""Core of the trainer: configuration, model, step, optimizer and data."""
