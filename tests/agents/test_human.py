"""A person who plays: help, quit, and typing errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from world import Counter, Two

from ludus.agents.human import HumanAgent
from ludus.client.session import LocalSession
from ludus.data.episode import Episode
from ludus.environment.introspection import build_env_spec
from ludus.envs.echo import Echo
from ludus.envs.sudoku import Sudoku
from ludus.rollout import Assignment, run_episode


async def play(cls: type, lines: Iterable[str], **task: Any) -> tuple[Episode, str]:
    """The episode of a person who types these lines, and all text that was shown."""
    typed = iter(lines)
    shown: list[str] = []

    async def ask(prompt: str) -> str:
        return next(typed)

    agent = HumanAgent(ask, lambda message: shown.append(message.text), shown.append)
    async with LocalSession(build_env_spec(cls)) as session:
        episode = await run_episode(session, agent, Assignment.of("world", **task))
    return episode, "\n".join(shown)


async def test_the_tools_are_described_before_the_first_observation() -> None:
    _, shown = await play(Two, ["leave"])
    assert shown.index("double NUMBER") < shown.index("Hello")
    assert "Double a number." in shown and "End the episode." in shown


async def test_typing_errors_do_not_reach_the_environment() -> None:
    wrong = ["dubble 3", "double three", "double 3 4", "", "double", "help"]
    episode, shown = await play(Two, [*wrong, "double 3", "leave"])
    assert (episode.reward, episode.tool_calls, episode.malformed_calls) == (1.0, 2, 0)
    assert (
        "Did you mean 'double'?" in shown
        and "whole number, not 'three'" in shown
        and "Type double NUMBER" in shown
    )
    assert "default 'bye'" in shown


async def test_with_one_tool_bare_values_are_typed() -> None:
    episode, shown = await play(Counter, ["two", "", "help", "2", "3"], goal=5)
    assert (episode.reward, episode.tool_calls, episode.malformed_calls) == (1.0, 2, 0)
    assert "a whole number" in shown and "'two'" in shown and "How much to add." in shown


async def test_the_arguments_of_one_tool_are_typed_on_a_line() -> None:
    lines = ["1 4 2", "row=2", "row=2 digit=2 column=1", "1 two 3", "quit"]
    episode, shown = await play(Sudoku, lines, seed=1)
    written = [c.function.arguments for m in episode.messages for c in m.tool_calls or ()]
    assert [json.loads(text) for text in written] == [
        {"row": 1, "column": 4, "digit": 2},
        {"row": 2, "digit": 2, "column": 1},
    ]
    assert "'two'" in shown


async def test_quit_ends_the_episode_unscored() -> None:
    for lines in (["quit"], ["double", " quit "]):
        episode, _ = await play(Two, lines)
        assert episode.error is not None and episode.error.kind == "ProviderRefuses"
        assert (episode.reward, episode.tool_calls) == (None, 0)


async def test_a_command_in_quotes_is_a_value() -> None:
    lines = ['echo_message "quit"', "help", 'echo_message "help"', "quit"]
    episode, _ = await play(Echo, lines, seed=1)
    written = [c.function.arguments for m in episode.messages for c in m.tool_calls or ()]
    assert [text.partition(": ")[2] for text in written] == ['"quit"}', '"help"}']
