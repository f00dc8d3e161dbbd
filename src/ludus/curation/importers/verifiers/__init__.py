"""Importer for the results and traces of verifiers."""
