"""One training run: its loop, its evaluation, its checkpoints."""
