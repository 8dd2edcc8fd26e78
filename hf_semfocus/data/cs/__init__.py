"""Tasks of the context-sensitive level: they need a bounded tape."""
