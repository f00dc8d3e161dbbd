"""`ludus diagnose`: explain a GRPO run, and what to change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ludus.cli import common
from ludus.cli.display.console import console, escape_control_chars, print_facts, print_text
from ludus.cli.flags import command, name_command_flags
from ludus.data.training_log import sparkline
from ludus.options import Option, expand_path

if TYPE_CHECKING:
    from ludus.diagnose import Diagnosis, RunData

_SPARKLINE_WIDTH = 60
_VERDICT_STYLES = {"problem": "yellow", "note": "cyan", "good": "green"}
_LABELS = {"zero_variance": "zero variance", "cut_off": "cut off", "grad_norm": "gradient"}
_SHARES = ("zero_variance", "format", "done", "cut_off", "out_of_turns", "unscored")
_RARE = ("out_of_turns", "unscored")
"""Shares that are printed if they are not zero."""
_NUMBERS = ("length", "turns", "entropy", "grad_norm")


@command
def diagnose_command(
    run: Annotated[Path, Option(parse=expand_path), "Folder of a `ludus train grpo`."],
    *,
    as_json: common.JsonObject = False,
) -> None:
    """Diagnose a GRPO run: whether it learned, what went wrong, and what to change.

    Example: ludus diagnose models/wordle-grpo
    """
    from rich.padding import Padding
    from rich.text import Text

    from ludus.diagnose import read_run

    data = read_run(run)
    diagnosis = data.diagnose()
    # Advice names arguments of the training, not of this command.
    translate = partial(name_command_flags, command=("train", "grpo"))
    if as_json:
        fields = asdict(diagnosis)
        del fields["curve"]
        for change in (fields["reward"], *fields["parts"]):
            if change is not None:
                change["delta"] = change["final"] - change["initial"]
                del change["scale"]
        for verdict in fields["verdicts"]:
            verdict |= {name: translate(verdict[name]) for name in ("finding", "advice")}
        head = {"run": str(run), "planned": data.planned_steps, "finished": data.finished}
        print(json.dumps({**head, **fields}, allow_nan=False))
        return

    def as_sentence(text: str) -> Padding:
        sentence = translate(f"{text[:1].upper()}{text[1:]}.")
        return Padding(Text(escape_control_chars(sentence)), (0, 0, 0, 2))

    print_text(data.title, "bold")
    print_facts(table_rows(data, diagnosis))
    for verdict in diagnosis.verdicts:
        print_text(f"\n{verdict.name}", f"bold {_VERDICT_STYLES[verdict.kind]}")
        console().print(as_sentence(verdict.finding))
        console().print(as_sentence(f"-> {verdict.advice}"))
    if data.note is not None:
        print_text(data.note, "dim")


def table_rows(run: RunData, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    from ludus.data.interval_estimates import format_mean
    from ludus.diagnose.reward_change import (
        format_change_with_interval,
        format_number,
        format_reward,
        format_share,
    )

    steps = f"{diagnosis.steps:,}"
    if run.planned_steps and run.planned_steps > diagnosis.steps:
        steps += f" of {run.planned_steps:,}"
    state = "" if run.finished else " (not finished)"
    window = diagnosis.window
    yield "steps", f"{steps}{state}; the first {window} logged steps are compared with the last"
    if (mean := diagnosis.mean_reward) is not None:
        text = format_mean(mean.value, mean.interval, label="95 % interval ")
        yield "mean reward", f"{text}, n = {mean.n:,} of all steps"
    if (change := diagnosis.reward) is None:
        yield "reward change", "no episode was scored"
    else:
        scale = change.scale
        yield "reward change", format_change_with_interval(change)
        yield "", sparkline(diagnosis.curve, low=scale.low, high=scale.high, width=_SPARKLINE_WIDTH)
        for part in diagnosis.parts:
            yield part.name, format_change_with_interval(part)
        if diagnosis.held_out:
            ends = diagnosis.held_out[:1] + diagnosis.held_out[1:][-1:]
            texts = (f"{format_reward(value, scale)} (step {step:,})" for step, value in ends)
            yield "held out", " -> ".join(texts)
    for key, (first, last) in diagnosis.metrics.items():
        label = _LABELS.get(key, key.replace("_", " "))
        if key in _SHARES and (key not in _RARE or max(first, last) > 0):
            yield label, f"{format_share(first)} -> {format_share(last)}"
        elif key in _NUMBERS:
            unit = " tokens" if key == "length" else ""
            yield label, f"{format_number(first)} -> {format_number(last)}{unit}"
    for bucket in diagnosis.curriculum:
        rates = (bucket.first_success, bucket.last_success)
        success = " -> ".join(format_share(rate) for rate in rates if rate is not None)
        yield bucket.label, f"{bucket.groups:,.0f} groups, success {success}"
    if diagnosis.seconds:
        seconds = (f"{phase} {value:.2g} s" for phase, value in diagnosis.seconds.items())
        yield "time", ", ".join(seconds)
