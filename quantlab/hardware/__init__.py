"""The catalogue of gpus, this machine, and what fits in its memory; no torch."""
