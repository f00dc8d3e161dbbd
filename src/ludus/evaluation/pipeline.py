"""The stage: candidates play the same tasks one after the other, and are compared.

Playing is the collector's business; a candidate's episodes are a run like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from ludus.client.event_loop import to_sync
from ludus.data.config_diff import dump_json
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.data.versions import versions
from ludus.errors import ConfigError
from ludus.evaluation.attempts import load_attempts
from ludus.evaluation.candidates import Candidate, parse_candidates
from ludus.evaluation.chart import render_chart
from ludus.evaluation.contamination import (
    KnownQuestions,
    find_ambiguous_environments,
    load_known_questions,
)
from ludus.evaluation.metrics import build_metrics
from ludus.evaluation.output_dir import (
    CHART_FILE,
    OUTPUT_FILES,
    REPORT_FILE,
    SUMMARY_FILE,
    atomic_output,
    check_folder,
    default_folder,
    next_free_folder,
)
from ludus.evaluation.report import render_report
from ludus.evaluation.results import CandidateAttempts, Evaluation, score_candidates
from ludus.policy.preflight import check_model
from ludus.rollout import CollectConfig, CollectResult, collect
from ludus.rollout.callbacks import CollectProgress
from ludus.rollout.options import RolloutOptions
from ludus.rollout.progress import PhaseProgress

ReporterFactory = Callable[[str], AbstractContextManager[CollectProgress]]
"""Who is told how the candidate of this label plays; a new one for each."""


async def evaluate(
    config: CollectConfig,
    candidates: Sequence[Candidate | str],
    out: str | Path | None = None,
    *,
    solved_at: float = 1.0,
    not_in: str | Path | None = None,
    base_url: str | None = None,
    token: str | None = None,
    resume: bool = True,
    retry_broken: bool = False,
    options: RolloutOptions | None = None,
    make_reporter: ReporterFactory = lambda label: nullcontext(CollectProgress()),
    on_phase: Callable[[PhaseProgress], None] = lambda progress: None,
    command: str | None = None,
) -> Evaluation:
    """Let every candidate play the tasks of the job, and write what came of it into `out`.

    A candidate may be a text such as "base=smollm2" or "openai:gpt-5-mini". What a folder has
    already is not played again, and a candidate that is done is not even loaded. Tasks that ask
    what the data set `not_in` asks are left out of all figures.
    """
    players = [
        one if isinstance(one, Candidate) else parse_candidates([one])[0] for one in candidates
    ]
    _check_labels(players)
    if base_url is None:
        config.mixture.check_installed()
    _check_solved_at(solved_at)
    known = load_known_questions(Path(not_in)) if not_in is not None else None
    settings = {one.label: config.identity(one.make_agent()) for one in players}
    wanted = default_folder(str(config.mixture), settings) if out is None else Path(out)
    folder = _resolve_folder(wanted, resume=resume)
    unplayed = [
        one
        for one in players
        if not _is_complete(
            folder / one.label, settings[one.label], config.episodes, retry_broken=retry_broken
        )
    ]
    local = [one for one in unplayed if one.model is not None]
    for one in local:
        check_model(one.model or "", device=one.device, dtype=one.dtype)
    on_phase(PhaseProgress("Checking the candidates", in_log=bool(local)))
    for one in local:
        await _check_local_candidate(one)
    played, stopped = [], None
    for candidate in players:
        outcome = await _collect_episodes(
            candidate,
            config,
            folder / candidate.label,
            make_reporter,
            base_url=base_url,
            token=token,
            retry_broken=retry_broken,
            options=options,
        )
        found = load_attempts(RunFolder.open(outcome.folder), config.episodes)
        played.append(CandidateAttempts(candidate.label, settings[candidate.label]["agent"], found))
        stopped = outcome.stop_reason
        if stopped is not None:
            break
    environments = {attempt.environment for one in played for attempt in one.attempts}
    metrics = build_metrics(solved_at, sorted(environments))
    evaluation = Evaluation(
        folder=folder,
        settings=_shared_settings(config, settings[players[0].label]),
        metrics=metrics,
        scores=score_candidates(played, metrics, config.episodes, known),
        solved_at=solved_at,
        not_in=None if not_in is None else str(not_in),
        stopped=stopped,
        versions=versions("torch", "transformers"),
        command=command,
        ambiguous_environments=_ambiguous_environments(played, known),
    )
    _write(evaluation)
    return evaluation


evaluate_sync = to_sync(evaluate)
"""`evaluate` for callers that do not await, in a notebook too."""


def _is_complete(run: Path, settings: JsonObject, episodes: int, *, retry_broken: bool) -> bool:
    """Whether the candidate need not play; a run with other settings is an error."""
    if not (run / "run.json").exists():
        return False
    found = load_attempts(RunFolder.resume_or_create(run, settings), episodes)
    return len(found) == episodes and not (retry_broken and any(each.broken for each in found))


async def _check_local_candidate(candidate: Candidate) -> None:
    """Raise what would stop a candidate before anybody plays: the others may play for hours."""
    if candidate.model is not None:
        from ludus.evaluation.preflight import check_local_model

        asked = partial(
            check_local_model,
            device=candidate.device,
            dtype=candidate.dtype,
            chat_template_kwargs=candidate.chat_template_kwargs,
        )
        await asyncio.to_thread(asked, candidate.model)


async def _collect_episodes(
    candidate: Candidate,
    config: CollectConfig,
    folder: Path,
    make_reporter: ReporterFactory,
    **settings: Any,
) -> CollectResult:
    """The agent is made here and closed here: two models never lie in memory at once."""
    with make_reporter(candidate.label) as reporter:
        async with candidate.make_agent() as agent:
            return await collect(config, agent, folder, progress=reporter, **settings)


def _resolve_folder(wanted: Path, *, resume: bool) -> Path:
    if not resume:
        return next_free_folder(wanted)
    check_folder(wanted)
    return wanted


def _check_solved_at(solved_at: float) -> None:
    if not isfinite(solved_at):
        raise ConfigError(
            f"--solved-at {solved_at} is no reward from which a task could be solved. Give a "
            "number, such as 1."
        )


def _check_labels(candidates: Sequence[Candidate]) -> None:
    if not candidates:
        raise ConfigError("Nobody is to be evaluated. Name one: --candidate oracle.")
    taken: dict[str, str] = {name.casefold(): name for name in OUTPUT_FILES}
    for label in (candidate.label for candidate in candidates):
        if label.casefold() in taken:
            raise ConfigError(
                f"Two candidates are called {label!r}. "
                "Tell them apart by a label: --candidate base=… --candidate sft=…"
                if taken[label.casefold()] not in OUTPUT_FILES
                else f"A candidate cannot be called {label!r}: that is a file of the evaluation."
            )
        taken[label.casefold()] = label


def _ambiguous_environments(
    candidates: Sequence[CandidateAttempts], known: KnownQuestions | None
) -> tuple[str, ...]:
    """Of which environments the questions could not be compared with those that are known."""
    if known is None:
        return ()
    found = {
        name for one in candidates for name in find_ambiguous_environments(one.attempts, known)
    }
    return tuple(sorted(found))


def _shared_settings(config: CollectConfig, settings: JsonObject) -> JsonObject:
    """What is the same for all candidates."""
    rest = {name: value for name, value in settings.items() if name != "agent"}
    return {"episodes": config.episodes, **rest}


def _write(evaluation: Evaluation) -> None:
    with atomic_output(evaluation.folder) as draft:
        summary = dump_json(evaluation.as_json(), indent=2)
        (draft / SUMMARY_FILE).write_text(f"{summary}\n", encoding="utf-8")
        (draft / REPORT_FILE).write_text(render_report(evaluation), encoding="utf-8")
        (draft / CHART_FILE).write_text(render_chart(evaluation), encoding="utf-8")
