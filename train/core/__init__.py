"""What is trained and how: configuration, model, step, optimizer, data and the loop over steps."""
