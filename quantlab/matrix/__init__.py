"""The compatibility matrix: typed data, queries, verdicts; no torch."""
