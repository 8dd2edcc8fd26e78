"""What attention costs, measured: ours beside dense attention and other ways to make it sparse."""
