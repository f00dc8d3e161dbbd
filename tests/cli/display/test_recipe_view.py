"""What a recipe prints at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.cli.display.recipe_view import print_ending
from ludus.recipe.recipe_file import read_recipe


def test_control_characters_of_a_recipe_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.toml"
    file.write_text('next = ["ludus show {collect} \\u001b[31m"]\n[collect]\nenv = "catch"\n')
    print_ending(read_recipe(str(file)), {"collect": tmp_path / "\x1b[2J"}, (), ran=())
    printed = capsys.readouterr().out
    assert "ludus show" in printed and "\x1b" not in printed
