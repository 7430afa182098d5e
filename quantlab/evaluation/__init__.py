"""Proof that a checkpoint loads and works, with quality and speed measured."""
