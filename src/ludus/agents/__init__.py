"""Agents: they are shown messages and tools, and reply with messages and tool calls."""
