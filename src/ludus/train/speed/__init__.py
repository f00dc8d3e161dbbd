"""Faster training: packing, variable-length attention, CUDA graphs and compilation."""
