"""Recipes: a TOML file whose stages run in order, each only when something it uses changed."""
