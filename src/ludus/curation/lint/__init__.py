"""Checks on training data before it is trained on, alone and under a student's chat template."""
