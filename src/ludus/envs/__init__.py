"""The environments that ship, each registered like a stranger's package."""
