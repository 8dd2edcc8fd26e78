"""Tasks of the deterministic context-free level: one stack solves them."""
