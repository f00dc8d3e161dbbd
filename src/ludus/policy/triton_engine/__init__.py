"""Decoding engine for models of the Llama family: Triton kernels, an own KV cache, CUDA graphs.

Models that it does not support are decoded by `ludus.policy.engine.hf_decoder` instead.
torch is imported at use, and triton only on a GPU.
"""
