"""Importer for the rollouts of NeMo Gym."""
