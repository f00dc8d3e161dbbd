"""The result of `ludus rescore`: rewards before and after, agreement, and what the judge used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.cli.display.console import console
from ludus.cli.display.formatting import (
    format_count,
    format_dollars,
    plural,
)
from ludus.data.estimates import format_mean

if TYPE_CHECKING:
    from ludus.scoring.rescore import RescoreResult


def print_rescore_result(result: RescoreResult) -> None:
    """Print rewards before and after, the agreement, what the judge used, and the folder."""
    from rich.table import Table
    from rich.text import Text

    out, comparison = console(), result.comparison
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    estimates = (comparison.before, comparison.after)
    counts = ("0" if each is None else f"{each.n:,}" for each in estimates)
    table.add_row("scored episodes", *counts)
    cells = ("" if each is None else format_mean(each.value, each.interval) for each in estimates)
    table.add_row("mean reward (95 % interval)", *cells)
    table.add_row("changed", "", f"{comparison.changed:,}")
    table.add_row("scored now", "", f"{result.new_episodes:,}")
    out.print(table)
    whose = "The judge" if comparison.compared == "judge" else "The new reward"
    accuracy = comparison.pair_accuracy
    text = "Agreement with the stored reward: unknown, because one of them never varies."
    if accuracy is not None:
        text = (
            f"{whose} prefers the attempt with the higher stored reward in "
            f"{format_mean(accuracy.value, accuracy.interval)} of {plural(accuracy.n, 'pair')} of "
            "attempts at the same task."
        )
    out.print(Text(text), soft_wrap=True)
    if (judge := result.summary.get("judge")) is not None:
        usage = judge["usage"]
        tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        parts = [plural(judge["calls"], "call"), f"{judge['cached']:,} from the cache"]
        parts += [f"{judge['failed']:,} failed"] if judge["failed"] else []
        parts += [f"{format_count(tokens)} tokens"] if tokens else []
        parts += [format_dollars(usage["cost"])] if usage["cost"] is not None else []
        out.print(Text(f"Judge: {', '.join(parts)}."), soft_wrap=True)
    out.print(Text(f"run: {result.folder}"), soft_wrap=True)
    summary = result.summary
    if summary["remaining"]:
        left = f"{plural(summary['remaining'], 'episode')} ({result.stop_reason or 'not scored'})"
        text = f"Left to do: {left}. The same command resumes."
        out.print(Text(text, style="yellow"), soft_wrap=True)
    if summary["broken"]:
        text = f"Broken and not scored: {plural(summary['broken'], 'episode')}."
        if judge is not None:
            text += " Judge again those on which the judge failed: --retry-broken."
        out.print(Text(text, style="yellow"), soft_wrap=True)
