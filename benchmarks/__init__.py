"""Benchmarks: what the design saves, measured as ratios within one run. Not tests: timing is noisy."""
