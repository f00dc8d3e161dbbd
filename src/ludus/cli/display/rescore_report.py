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
    from ludus.data.estimates import Interval
    from ludus.scoring.agreement import Agreement
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
    table.add_row(
        "scored episodes", f"{comparison.scored_before:,}", f"{comparison.scored_after:,}"
    )
    means = (
        (comparison.mean_before, comparison.interval_before),
        (comparison.mean_after, comparison.interval_after),
    )
    cells = ("" if mean is None else format_mean(mean, interval) for mean, interval in means)
    table.add_row("mean reward (95 % interval)", *cells)
    table.add_row("changed", "", f"{comparison.changed:,}")
    table.add_row("scored now", "", f"{result.new_episodes:,}")
    out.print(table)
    whose = "The judge" if comparison.compared == "judge" else "The new reward"
    for text in _describe_agreement(whose, comparison.agreement):
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


def _describe_agreement(whose: str, agreement: Agreement) -> list[str]:
    """Sentences for the figures that there are."""
    texts = []
    if agreement.rank_correlation is not None:
        figure = _with_interval(agreement.rank_correlation, agreement.rank_correlation_interval)
        texts.append(
            f"{whose} correlates with the stored reward by {figure} "
            f"(Spearman, {plural(agreement.episodes, 'episode')})."
        )
    if agreement.pair_accuracy is not None:
        figure = _with_interval(agreement.pair_accuracy, agreement.pair_accuracy_interval)
        texts.append(
            f"{whose} prefers the attempt with the higher stored reward in {figure} of "
            f"{plural(agreement.pairs, 'pair')} of attempts at the same task."
        )
    if not texts:
        texts.append("Agreement with the stored reward: unknown, because one of them never varies.")
    return texts


def _with_interval(value: float, interval: Interval | None) -> str:
    return f"{value:.2f}" + (f" ({interval.low:.2f} to {interval.high:.2f})" if interval else "")
