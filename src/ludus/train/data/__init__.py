"""Training data: loading rows, tokenizing and filtering them, and their loss masks."""
