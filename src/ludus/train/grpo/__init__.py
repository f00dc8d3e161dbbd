"""GRPO: a model tries tasks in groups, and learns from which of its attempts did better."""
