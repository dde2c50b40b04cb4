"""Following a run while it trains. `jsonl` is always on; other trackers are asked for with `--track`."""
