"""Formats that are shared and stored: content, tools."""
