"""What is computed once and kept on disk: resized images and trunk tokens."""
