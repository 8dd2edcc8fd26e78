"""ListOps: the Long Range Arena grammar, its exact length distribution, and sampling from it."""
