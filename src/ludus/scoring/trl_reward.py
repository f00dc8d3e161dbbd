"""Reward functions that were written for TRL's GRPOTrainer: `f(completions, **kwargs)`."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ludus.data.episode import Episode
from ludus.data.messages import messages_before_reply
from ludus.environment.rubric import EpisodeFunction


def is_trl_function(function: Callable[..., Any]) -> bool:
    """Whether a function takes the completions of a batch instead of an episode."""
    try:
        return "completions" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def adapt_trl_function(function: Callable[..., Any]) -> EpisodeFunction:
    """Call a function of TRL with a batch of one episode.

    It is given `prompts` and `completions` as messages, and the arguments of the task as columns,
    as far as its signature takes them.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}

    @functools.wraps(function)
    async def score(episode: Episode) -> Any:
        messages = [message.model_dump(mode="json") for message in episode.messages]
        first_reply = len(messages_before_reply(episode.messages))
        columns: dict[str, list[Any]] = {
            **{name: [value] for name, value in episode.task.items()},
            "prompts": [messages[:first_reply]],
            "completions": [messages[first_reply:]],
        }
        given = {name: columns[name] for name in columns if takes_all or name in names}
        if inspect.iscoroutinefunction(function):
            values = await function(**given)
        else:
            # In a thread, because it may block.
            values = await asyncio.to_thread(function, **given)
        if not isinstance(values, Sequence) or len(values) != 1:
            raise TypeError(
                f"it must return a list with a reward for each completion, got {values!r}"
            )
        return values[0]

    return score
