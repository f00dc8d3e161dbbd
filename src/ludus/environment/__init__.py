"""Base classes of environments, their registry, and the runner that drives them."""
