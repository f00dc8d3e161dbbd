"""Importer for the logs of Inspect AI."""
