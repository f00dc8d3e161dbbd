"""Everybody's rollouts, brought into a run folder: a module for each format."""
