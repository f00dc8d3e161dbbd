"""Games of Wordle with a known word."""

from __future__ import annotations

from typing import Any

from ludus.envs.wordle import Wordle
from ludus.protocol.types import CallToolAction, CallToolObservation


def game(secret: str, **task: Any) -> Wordle:
    environment = Wordle()
    environment.reset(words=[secret], **task)
    return environment


def guess(environment: Wordle, word: str) -> CallToolObservation:
    seen = environment.step(CallToolAction(tool_name="guess", arguments={"word": word}))
    assert isinstance(seen, CallToolObservation)
    return seen
