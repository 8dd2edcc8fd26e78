"""Tasks of the regular level: a finite automaton solves them."""
