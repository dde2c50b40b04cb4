"""One self-contained HTML file about a run, a comparison or a study; every plot also as SVG and PDF."""
