"""Sampling from a local model: the engine interface, the batcher and the HF decoder."""
