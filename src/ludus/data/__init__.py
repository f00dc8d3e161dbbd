"""Stored formats (episodes, runs, messages, tools), and how they are read and written."""
