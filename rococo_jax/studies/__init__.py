"""Studies beside the benchmarks: where an image tower looks, and whether it looks at what was mixed in."""
