"""Decoding engine for models of the Llama family: Triton kernels, an own KV cache, CUDA graphs.

Models that it does not support are decoded by `ludus.policy.engine.hf_decoder` instead.
Its modules import torch, except `cuda_graphs`; Triton is imported only on a GPU.
"""
