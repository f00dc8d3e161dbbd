"""The common part of `ludus train sft`, `dpo`, `grpo` and `tutor`: run the stage, print, upload.

With several processes (torchrun) only rank 0 prints and uploads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.cli.command_line import end_if_checking, is_stage
from ludus.cli.display.console import escape_control_chars
from ludus.cli.display.signals import EXIT_CODES
from ludus.cli.program import name_flags
from ludus.errors import LudusError

if TYPE_CHECKING:
    from ludus.cli.common import HubTarget
    from ludus.cli.display.train_display import TrainDisplay
    from ludus.cli.display.train_metrics import TrainMetrics
    from ludus.cli.display.train_summary import TrainSummary
    from ludus.train import TrainProgress, TrainResult

_MIN_NAME_WIDTH = 10


def run_training(
    stage: Callable[[TrainProgress], TrainResult],
    out: Path,
    *,
    metrics: TrainMetrics,
    summary: TrainSummary,
    overwrite: bool,
    push: HubTarget | None,
    as_json: bool,
) -> None:
    """Train, print the result, and upload the model."""
    from ludus.cli.display.train_display import train_display
    from ludus.cli.hub_uploads import push_trained_model
    from ludus.publish.hub_upload import MODEL

    if push is not None:
        push.check(MODEL)
    end_if_checking()
    is_rank_0 = os.environ.get("RANK", "0") == "0"
    again = "the same command without --overwrite" if overwrite else "the same command"
    on_checked = partial(push.create, MODEL) if push is not None and is_rank_0 else None
    try:
        with (
            train_display(
                metrics, as_json=as_json, quiet=not is_rank_0, on_checked=on_checked
            ) as display,
            # Experiment trackers print on stdout, which is for results.
            redirect_stdout(sys.stderr),
        ):
            result = _run_stage(stage, display, out, again, summary.without_checkpoint)
        if is_rank_0:
            _print_result(result, summary, again, as_json=as_json)
        # A signal after the last step: the model is complete, but nothing else should follow.
        stopped = result.stopped or display.stopping
        if stopped is not None:
            sys.exit(EXIT_CODES.get(stopped, 1))
        if is_rank_0 and push is not None:
            url = push_trained_model(
                result.folder, push.repo_id, private=push.private, retry_command=again
            )
            print(json.dumps({"event": "pushed", "url": url}) if as_json else f"Model: {url}")
    except LudusError as error:
        if not is_rank_0:
            sys.exit(1)
        if as_json:
            print(json.dumps({"event": "error", "message": name_flags(str(error))}))
        raise


def _run_stage(
    stage: Callable[[TrainProgress], TrainResult],
    display: TrainDisplay,
    out: Path,
    again: str,
    fallback: str,
) -> TrainResult:
    """Run the stage; on a second Ctrl-C say from which step the run can be resumed.

    `fallback` is what the same command does where there is no checkpoint.
    """
    try:
        return stage(display)
    except KeyboardInterrupt:
        if not display.has_begun:
            raise
        from ludus.train.output.checkpoints import latest_checkpoint, read_state

        checkpoint = latest_checkpoint(out.expanduser())
        state = None if checkpoint is None else read_state(checkpoint)
        effect = f"resumes after step {state.step:,}" if state else fallback
        raise KeyboardInterrupt(f"Stopped at once; {again} {effect}.") from None


def _print_result(result: TrainResult, summary: TrainSummary, again: str, *, as_json: bool) -> None:
    if as_json:
        fields = {"folder": str(result.folder), **summary.as_json(result)}
        fields |= {"steps": result.steps, "stopped": result.stopped}
        print(json.dumps({"event": "done", **fields}, allow_nan=False))
    elif result.stopped is not None:
        print(f"{summary.stopped_text(result)}; {again} resumes there.")
    else:
        lines = summary.lines(result)
        width = max(_MIN_NAME_WIDTH, *(len(name) + 2 for name, _ in lines))
        for name, value in lines:
            print(escape_control_chars(f"{name:<{width}}{value}"))
        # A recipe has its own next stage.
        for line in [] if is_stage() else summary.next_steps(result):
            print(escape_control_chars(line))
