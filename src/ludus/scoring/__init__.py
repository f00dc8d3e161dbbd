"""Scoring of episodes: reward functions, judges, and `rescore` for stored episodes."""
