"""GRPO: a model plays tasks in groups and is trained on which of its attempts did better."""
