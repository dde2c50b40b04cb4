"""`gcdbench new-plugin`: packages for authors to start from. The folders hold the templates, one per kind of plugin."""
