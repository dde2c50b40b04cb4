"""From truth and prediction to numbers. Nothing here needs torch."""
