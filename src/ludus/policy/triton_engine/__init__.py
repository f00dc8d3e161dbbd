"""Decoding at the speed of a GPU's memory: own kernels, own cache, steps replayed as graphs.

It takes models of the Llama family; what it cannot take is left to `ludus.policy.engine.hf_decoder`, with a
reason in words. torch is loaded at use, and triton only where there is a GPU.
"""
