"""Model cards, and what is published on the Hub."""
