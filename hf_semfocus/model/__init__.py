"""The model, its masks and its attention: everything that ships inside a checkpoint."""
