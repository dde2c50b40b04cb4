"""The fault suite: `python -m tests.torture --minutes 5` (or `make torture`) breaks runs on purpose."""
