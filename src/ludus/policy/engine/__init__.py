"""Sampling from a local model: the engine interface, request batching and the Hugging Face decoder."""
