"""Transcripts whose text comes from a model or an environment."""

from __future__ import annotations

from io import StringIO

from data.sample_episodes import attempt
from rich.console import Console

from ludus.cli.display.transcript import print_transcript


def test_names_of_rewards_are_neither_markup_nor_control_characters() -> None:
    file = StringIO()
    out = Console(file=file, width=200, force_terminal=False)
    print_transcript(out, attempt(0, rewards={"[/b] tidy": 1.0, "\x1b]0;title\x07": 0.5}))
    assert "[/b] tidy 1" in file.getvalue() and "\x1b]" not in file.getvalue()
