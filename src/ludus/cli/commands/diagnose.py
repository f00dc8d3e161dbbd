"""`ludus diagnose`: explain a GRPO run, and what to change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.display.console import (
    console,
    escape_control_chars,
    print_facts,
    print_table,
    print_text,
)
from ludus.cli.program import command, name_command_flags
from ludus.data.sparkline import sparkline
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject
    from ludus.diagnose import Diagnosis, RewardChange, RunData

_SPARKLINE_WIDTH = 60
_VERDICT_STYLES = {"problem": "yellow", "note": "cyan", "good": "green"}
_SHARE_LABELS = {
    "zero_variance": "zero variance",
    "format": "format",
    "done": "done",
    "cut_off": "cut off",
}
_NONZERO_LABELS = {
    "out_of_turns": "out of turns",
    "unscored": "unscored",
}
"""Shares that are printed only where they are not zero."""
_NUMBER_LABELS = {
    "length": "length",
    "turns": "turns",
    "entropy": "entropy",
    "grad_norm": "gradient",
}
_UNITS = {"length": " tokens"}
_MAX_BUCKET_ROWS = 20


@command
def diagnose(
    run: Annotated[Path, Option(parse=expand_path), "Folder of a `ludus train grpo`."],
    *,
    as_json: common.JsonObject = False,
) -> None:
    """Diagnose a GRPO run: whether it learned, what went wrong, and what to change.

    Example: ludus diagnose models/wordle-grpo
    """
    from ludus.diagnose import read_run

    data = read_run(run)
    diagnosis = data.diagnose()
    # Advice names arguments of the training, not of this command.
    translate = partial(name_command_flags, command=("train", "grpo"))
    if as_json:
        fields = _as_json(diagnosis, translate)
        head = {"run": str(run), "planned": data.planned_steps, "finished": data.finished}
        print(json.dumps({**head, **fields}, allow_nan=False))
    else:
        _print(data, diagnosis, translate)


def _as_json(diagnosis: Diagnosis, translate: Callable[[str], str]) -> JsonObject:
    """The fields of a diagnosis; `translate` puts flags in place of argument names."""

    def change_as_json(change: RewardChange) -> JsonObject:
        names = ("name", "initial", "final", "delta", "interval")
        return {name: getattr(change, name) for name in names}

    fields = asdict(diagnosis)
    del fields["curve"]
    fields["reward"] = None if diagnosis.reward is None else change_as_json(diagnosis.reward)
    fields["parts"] = [change_as_json(part) for part in diagnosis.parts]
    for verdict in fields["verdicts"]:
        verdict |= {name: translate(verdict[name]) for name in ("finding", "advice")}
    return fields


def _print(run: RunData, diagnosis: Diagnosis, translate: Callable[[str], str]) -> None:
    """Print the table, the verdicts, and notes on unreadable files."""
    from rich.padding import Padding
    from rich.text import Text

    def as_sentence(text: str) -> Padding:
        sentence = translate(f"{text[:1].upper()}{text[1:]}.")
        return Padding(Text(escape_control_chars(sentence)), (0, 0, 0, 2))

    print_text(run.title, "bold")
    print_facts(_table_rows(run, diagnosis))
    if diagnosis.curriculum:
        _print_buckets(diagnosis)
    for verdict in diagnosis.verdicts:
        print_text(f"\n{verdict.name}", f"bold {_VERDICT_STYLES[verdict.kind]}")
        console().print(as_sentence(verdict.finding))
        console().print(as_sentence(f"-> {verdict.advice}"))
    for note in run.notes:
        print_text(translate(note), "dim")


def _table_rows(run: RunData, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from ludus.diagnose.reward_delta import format_number, format_share

    steps = f"{diagnosis.steps:,}"
    if run.planned_steps and run.planned_steps > diagnosis.steps:
        steps += f" of {run.planned_steps:,}"
    state = "" if run.finished else " (not finished)"
    window = diagnosis.window
    yield "steps", f"{steps}{state}; the first {window} logged steps are compared with the last"
    yield from _reward_rows(diagnosis)
    for key, (first, last) in diagnosis.metrics.items():
        if key in _SHARE_LABELS or (key in _NONZERO_LABELS and max(first, last) > 0):
            label = _SHARE_LABELS.get(key) or _NONZERO_LABELS[key]
            yield label, f"{format_share(first)} -> {format_share(last)}"
        elif key in _NUMBER_LABELS:
            change = f"{format_number(first)} -> {format_number(last)}"
            yield _NUMBER_LABELS[key], f"{change}{_UNITS.get(key, '')}"
    if diagnosis.seconds:
        yield "step time", _format_times(diagnosis)


def _print_buckets(diagnosis: Diagnosis) -> None:
    """The buckets of a curriculum, those that were drawn most."""
    from ludus.diagnose.reward_delta import format_share

    drawn_most = sorted(diagnosis.curriculum, key=lambda each: -each.groups)[:_MAX_BUCKET_ROWS]
    rows = []
    for bucket in diagnosis.curriculum:
        if bucket in drawn_most:
            rates = (bucket.first_success, bucket.last_success)
            success = " -> ".join(format_share(rate) for rate in rates if rate is not None)
            rows.append((bucket.label, f"{bucket.groups:,.0f}", success))
    numbers = ("groups", "success")
    print_table(("curriculum", *numbers), rows, right=numbers)
    if hidden := len(diagnosis.curriculum) - len(drawn_most):
        print_text(f"{hidden} more")


def _reward_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from ludus.data.estimates import format_mean
    from ludus.diagnose.reward_delta import format_change_with_interval, format_reward

    change, mean = diagnosis.reward, diagnosis.mean_reward
    if mean is not None:
        text = format_mean(mean.value, mean.interval, label="95 % interval ")
        yield "mean reward", f"{text}, n = {mean.n:,} of all steps"
    if change is None:
        yield "reward change", "no episode was scored"
        return
    scale = change.scale
    yield "reward change", format_change_with_interval(change)
    yield "", sparkline(diagnosis.curve, low=scale.low, high=scale.high, width=_SPARKLINE_WIDTH)
    for part in diagnosis.parts:
        yield part.name, format_change_with_interval(part)
    if diagnosis.held_out:
        (first, before), (last, after) = diagnosis.held_out[0], diagnosis.held_out[-1]
        text = f"{format_reward(before, scale)} (step {first:,})"
        if last > first:
            text += f" -> {format_reward(after, scale)} (step {last:,})"
        yield "held out", text


def _format_times(diagnosis: Diagnosis) -> str:
    """0.5 s: rollout 0.3 s, train 0.2 s; per episode: model 0.2 s, environment 0.1 s."""
    from ludus.diagnose.reward_delta import format_number

    def join(*phases: str) -> str:
        seconds = {
            phase: diagnosis.seconds[phase] for phase in phases if phase in diagnosis.seconds
        }
        return ", ".join(f"{phase} {format_number(s, digits=2)} s" for phase, s in seconds.items())

    step = ": ".join(filter(None, (join("step").removeprefix("step "), join("rollout", "train"))))
    # Not parts of a step's time, because episodes run concurrently.
    episode = join("model", "environment")
    return "; ".join(filter(None, (step, f"per episode: {episode}" if episode else "")))
