"""Fuzzing of every parser of an outside format: `python -m tests.fuzz --cases 1000000` (or `make fuzz`)."""
