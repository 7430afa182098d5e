"""Libraries that quantize, one module each."""
