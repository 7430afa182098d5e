"""Moving checkpoints between schemes and formats: plan, stream, resume, prove."""
