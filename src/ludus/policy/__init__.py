"""A local model: its tokenizer and chat template. torch and transformers are loaded at use."""
