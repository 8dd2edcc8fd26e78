"""One training run, the comparison of masks over tasks and seeds, and the statistics of convergence."""
