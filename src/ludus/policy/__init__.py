"""A local model: what its name means, its weights, tokenizer and chat template.

torch and transformers are loaded at use.
"""
