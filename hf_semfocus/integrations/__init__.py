"""Sparse attention for any Transformers model: registered, applied, saved with it."""
