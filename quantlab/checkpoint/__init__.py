"""What a checkpoint is and says, read from configs and headers; no torch."""
