"""A person who plays: help, quit, and typing errors that cost no move."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from world import Counter, Two

from ludus.agents.human import HumanAgent
from ludus.client.local_session import LocalSession
from ludus.data.episode import Episode
from ludus.environment.introspection import build_env_spec
from ludus.envs.echo import Echo
from ludus.rollout import Assignment, run_episode


async def typing(cls: type, lines: Iterable[str], **task: Any) -> tuple[Episode, str]:
    """The episode of a person who types these lines, and all that the person was told."""
    typed = iter(lines)
    told: list[str] = []

    async def ask(prompt: str) -> str:
        return next(typed)

    person = HumanAgent(ask, lambda message: told.append(message.text), told.append)
    async with LocalSession(build_env_spec(cls)) as session:
        episode = await run_episode(session, person, Assignment.of("world", **task))
    return episode, "\n".join(told)


async def test_the_tools_are_described_before_the_first_move() -> None:
    _, told = await typing(Two, ["leave"])
    assert told.index("double NUMBER") < told.index("Hello")
    assert "Double a number." in told and "End the episode." in told


async def test_typing_errors_cost_no_move() -> None:
    wrong = ["dubble 3", "double three", "double 3 4", "", "help", "help leave"]
    episode, told = await typing(Two, [*wrong, "double 3", "leave"])
    assert (episode.reward, episode.tool_calls, episode.malformed_calls) == (1.0, 2, 0)
    assert "Did you mean 'double'?" in told and "whole number, not 'three'" in told
    assert "'bye' if left out" in told


async def test_one_tool_takes_bare_values_and_wrong_ones_cost_no_move() -> None:
    episode, told = await typing(Counter, ["two", "", "help", "2", "3"], goal=5)
    assert (episode.reward, episode.tool_calls, episode.malformed_calls) == (1.0, 2, 0)
    assert "number must be a whole number, not 'two'." in told and "How much to add." in told


async def test_quit_leaves_the_episode_unscored() -> None:
    for lines in (["quit"], ["double", "quit"]):
        episode, _ = await typing(Two, lines)
        assert episode.error is not None and episode.error.kind == "ProviderRefuses"
        assert (episode.reward, episode.tool_calls) == (None, 0)


async def test_a_command_in_quotes_is_a_value() -> None:
    lines = ["echo_message", '"quit"', "echo_message", "help", '"help"', "quit"]
    episode, _ = await typing(Echo, lines, seed=1)
    written = [c.function.arguments for m in episode.messages for c in m.tool_calls or ()]
    assert [text.partition(": ")[2] for text in written] == ['"quit"}', '"help"}']
