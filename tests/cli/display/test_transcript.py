"""Transcripts whose text comes from a model or an environment."""

from __future__ import annotations

import pytest
from data.sample_episodes import attempt

from ludus.cli.display.transcript import print_transcript


def test_names_of_rewards_are_neither_markup_nor_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_transcript(attempt(0, rewards={"[/b] tidy": 1.0, "\x1b]0;title\x07": 0.5}))
    printed = capsys.readouterr().out
    assert "[/b] tidy 1" in printed and "\x1b]" not in printed
