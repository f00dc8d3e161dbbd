"""Decoding engine for models of the Llama family: Triton kernels, an own KV cache, CUDA graphs."""
