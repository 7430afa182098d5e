"""Engines that the evaluator can load a checkpoint with, one module each."""
