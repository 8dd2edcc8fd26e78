"""The comparison of masks over tasks and seeds, its run directory, and the statistics of convergence."""
