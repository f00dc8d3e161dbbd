"""What a run came to, as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ludus.cli.display.console import escape_control_chars
from ludus.cli.display.formatting import format_count, format_dollars, plural
from ludus.data.bootstrap import MIN_SAMPLES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ludus.rollout import CollectResult

_BAR_WIDTH = 24


def render_summary(outcome: CollectResult, faults: Sequence[str] = ()) -> RenderableType:
    """The last words of `ludus collect`; `faults` are exceptions in the environment's code."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = outcome.summary
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("episodes", _format_episodes(facts, outcome.new_episodes)),
        ("mean reward", _label_reward(format_reward(facts), facts)),
        ("tokens", format_tokens(facts)),
    ):
        if value:
            table.add_row(Text(name, style="bold"), Text(value))
    for number, (reason, times) in enumerate(sort_by_count(facts["stop_reasons"])):
        label = "" if number else "ended"
        table.add_row(Text(label, style="bold"), render_bar(reason, times, facts["episodes"]))
    run = Text.assemble((f"{'run':<13}", "bold"), str(outcome.folder), overflow="ignore")
    lines: list[RenderableType] = [table, run]
    if facts["left"]:
        words = f"Left to do: {plural(facts['left'], 'episode')} ({outcome.stop_reason or 'not played'})."
        lines.append(Text(f"{words} The same command goes on.", style="yellow"))
    if facts["broken"]:
        words = f"Broken and not scored: {plural(facts['broken'], 'episode')}."
        lines.append(Text(f"{words} --retry-broken plays what broke again.", style="yellow"))
    for fault in faults:
        lines.append(
            Text.assemble("The environment raised  ", (escape_control_chars(fault), "red"))
        )
    return Group(*lines)


def sort_by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def format_reward(facts: Mapping[str, Any]) -> str:
    """The mean ± its standard error, which is left out where too few rewards, or none that differ,
    would make it look certain."""
    mean, deviation, scored = facts["mean_reward"], facts["reward_deviation"], facts["scored"]
    if mean is None:
        return "unscored" if facts["episodes"] else ""
    if not deviation or scored < MIN_SAMPLES:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {deviation / math.sqrt(scored):.3f}"


def _label_reward(mean: str, facts: Mapping[str, Any]) -> str:
    if not facts["scored"]:
        return mean
    error = "standard error, " if "±" in mean else ""
    return f"{mean} ({error}n = {facts['scored']:,})"


def format_tokens(facts: Mapping[str, Any]) -> str:
    usage = facts["usage"]
    if not usage["prompt_tokens"] + usage["completion_tokens"]:
        return ""
    cost = f", {format_dollars(usage['cost'])}" if usage["cost"] is not None else ""
    said, heard = format_count(usage["completion_tokens"]), format_count(usage["prompt_tokens"])
    return f"{heard} in, {said} out{cost}"


def render_bar(name: str, times: int, total: int) -> RenderableType:
    from rich.text import Text

    length = max(1, round(_BAR_WIDTH * times / max(1, total)))
    return Text.assemble((f"{name:<13}"), ("█" * length, "cyan"), f" {times:,}")


def _format_episodes(facts: Mapping[str, Any], fresh: int) -> str:
    of = f" of {facts['planned']:,}" if facts["left"] else ""
    if fresh == facts["episodes"]:
        return f"{facts['episodes']:,}{of}"
    new = f"{fresh:,} new" if fresh else "none new: all of them were there"
    return f"{facts['episodes']:,}{of} ({new})"
