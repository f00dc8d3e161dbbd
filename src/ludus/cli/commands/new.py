"""`ludus new`: copy a built-in recipe, to edit it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ludus.cli.program import command
from ludus.options import Option, expand_path


@command
def new(
    recipe: Annotated[
        str | None,
        Option(metavar="RECIPE", default="list them"),
        "Name of a built-in recipe.",
    ] = None,
    *,
    out: Annotated[
        Path | None,
        Option(name="output", short="o", metavar="FILE", default="RECIPE.toml", parse=expand_path),
        "File to write.",
    ] = None,
) -> None:
    """Copy a built-in recipe, with its comments, to edit it; without RECIPE, list all.

    Example: ludus new chain-sum && ludus run chain-sum.toml --dry-run
    """
    from ludus.data.files import create_atomically
    from ludus.errors import ConfigError, RunError, did_you_mean
    from ludus.recipe.recipe_file import read_recipe, shipped_recipes

    recipes = shipped_recipes()
    if recipe is None:
        for name in recipes:
            print(f"{name:<14}{read_recipe(name).description}")
        return
    if recipe not in recipes:
        hint = did_you_mean(recipe, recipes, f"Built-in recipes: {', '.join(recipes)}.")
        raise ConfigError(f"There is no recipe {recipe!r} to copy. {hint}")
    file = out or Path(f"{recipe}.toml")
    try:
        is_new = create_atomically(file, recipes[recipe])
    except OSError as error:
        raise RunError(f"{file} cannot be written: {error.strerror or error}.") from error
    if not is_new:
        raise RunError(f"{file} exists already. Choose another file with --output.")
    print(f"Wrote {file}. Its plan: ludus run {file} --dry-run")
