"""`ludus play`: play an episode yourself in the terminal."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

from ludus.cli import common
from ludus.cli.program import command
from ludus.options import Option


@command
def play(
    spec: common.Spec,
    *,
    seed: Annotated[int | None, Option(default="random"), "Seed of the task."] = None,
    task: common.Task = MappingProxyType({}),
    token: common.Token = None,
    debug: common.Debug = False,
) -> None:
    """Play an episode yourself, with the tools that a model has.

    Type `help` for the tools, `quit` to leave. Example: ludus play wordle --seed 7
    """
    import asyncio

    from ludus.cli.display.environment_errors import record_environment_errors
    from ludus.data.config import check_at_least

    arguments = dict(task)
    check_at_least("seed", seed, 0)
    if seed is not None:
        arguments["seed"] = seed
    with record_environment_errors(debug=debug):
        asyncio.run(_play_episode(spec, arguments, token))


async def _play_episode(spec: str, task: dict[str, Any], token: str | None) -> None:
    from ludus.agents.human import HumanAgent
    from ludus.cli.display.console import console, escape_control_chars
    from ludus.client.endpoint import connect
    from ludus.data.messages import Message
    from ludus.errors import LudusError, ProviderRefuses
    from ludus.rollout import Assignment, EpisodeLimits
    from ludus.rollout import run_episode as play_episode

    out = console()

    def show(message: Message) -> None:
        is_error = message.role == "tool" and message.text.startswith("Error:")
        style = "red" if is_error else ""
        out.print(escape_control_chars(message.text), markup=False, style=style)

    def say(text: str) -> None:
        out.print(escape_control_chars(text), markup=False, style="cyan", soft_wrap=True)

    async with connect(spec, token=token) as endpoint, endpoint.session() as session:
        episode = await play_episode(
            session,
            HumanAgent(show=show, say=say),
            Assignment.of(spec, **task),
            limits=EpisodeLimits(max_turns=1_000_000),
            system_prompt=None,
        )
    if episode.error is not None and episode.error.kind == ProviderRefuses.__name__:
        out.print("You left before the end.")
    elif episode.error is not None:
        raise LudusError(episode.error.message)
    else:
        parts = ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items())
        reward = "No reward" if episode.reward is None else f"Reward {episode.reward:g}"
        out.print(f"[bold]{reward}[/]" + (f"  ({parts})" if parts else ""))
