"""What is to be trained: specifications of runs and comparisons, presets, YAML files."""
