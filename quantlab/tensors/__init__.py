"""Number types and the arithmetic of quantized weights; knows no format."""
