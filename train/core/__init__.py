"""What is trained and how: configuration, model, step, optimizer and data."""
