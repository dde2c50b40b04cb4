"""Checks for authors of plugins."""
