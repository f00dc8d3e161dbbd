"""`evaluate`: candidates play the same tasks one after the other, and are compared.

The episodes of each candidate are a run of their own, in a folder below that of the evaluation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from ludus.client.event_loop import to_sync
from ludus.data.config_diff import dump_json
from ludus.data.run_folder import RunFolder
from ludus.data.tool_schema import JsonObject
from ludus.data.versions import versions
from ludus.environment.mixture import Mixture
from ludus.errors import ConfigError
from ludus.evaluation.attempts import load_attempts
from ludus.evaluation.candidates import Candidate, parse_candidates
from ludus.evaluation.chart import render_chart
from ludus.evaluation.config import EvalConfig
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
from ludus.rollout.callbacks import CollectProgress
from ludus.rollout.collect import CollectResult, collect
from ludus.rollout.config import CollectConfig
from ludus.rollout.progress import PhaseProgress

ProgressFactory = Callable[[str], AbstractContextManager[CollectProgress]]
"""Makes the object that receives the progress of the candidate with a label: `ludus.progress`."""


async def evaluate(
    env: str | Mixture,
    candidates: Sequence[Candidate | str],
    out: str | Path | None = None,
    config: EvalConfig | None = None,
    *,
    progress: ProgressFactory | None = None,
    on_phase: Callable[[PhaseProgress], None] = lambda phase: None,
    command: str | None = None,
) -> Evaluation:
    """Let every candidate play the same tasks, and write a report into `out`.

    Episodes that are recorded already are not played again, and a candidate that has played all of
    them is not loaded.

    Args:
        env: the environment: a spec such as `wordle`, a URL, or a mixture of several.
        candidates: whom to compare with the first; a text such as "base=smollm2" or
            "openai:gpt-5-mini" is parsed.
        out: the folder. By default it is named after the settings, below `evals/`.
        config: which tasks are played, and how they are judged.
        progress: called with the label of each candidate; the result receives its progress.
        on_phase: called when a phase begins that belongs to no candidate.
        command: the command line, for the report.
    """
    config = config or EvalConfig()
    progress = progress or (lambda label: nullcontext(CollectProgress()))
    players = [
        one if isinstance(one, Candidate) else parse_candidates([one])[0] for one in candidates
    ]
    _check_labels(players)
    mixture, num_episodes = config.parse_environment(env), config.total_episodes
    if config.base_url is None:
        mixture.check_installed()
    known = None
    if config.exclude_tasks_in is not None:
        known = load_known_questions(Path(config.exclude_tasks_in))
    settings = {one.label: config.identity(mixture, one.make_agent()) for one in players}
    folder = default_folder(str(mixture), settings) if out is None else Path(out)
    if config.resume:
        check_folder(folder)
    else:
        folder = next_free_folder(folder)
    unplayed = [
        one
        for one in players
        if not _is_complete(
            folder / one.label,
            settings[one.label],
            num_episodes,
            retry_broken=config.retry_broken,
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
        with progress(candidate.label) as candidate_progress:
            result = await _collect_episodes(
                mixture, candidate, folder / candidate.label, config, candidate_progress
            )
        attempts = load_attempts(RunFolder.open(result.folder), num_episodes)
        played.append(
            CandidateAttempts(candidate.label, settings[candidate.label]["agent"], attempts)
        )
        stopped = result.stop_reason
        if stopped is not None:
            break
    environments = {attempt.environment for one in played for attempt in one.attempts}
    metrics = build_metrics(config.solved_at, sorted(environments))
    shared = {key: value for key, value in settings[players[0].label].items() if key != "agent"}
    evaluation = Evaluation(
        folder=folder,
        settings={"episodes": num_episodes, **shared},
        metrics=metrics,
        scores=score_candidates(played, metrics, num_episodes, known),
        solved_at=config.solved_at,
        not_in=None if config.exclude_tasks_in is None else str(config.exclude_tasks_in),
        stopped=stopped,
        versions=versions("torch", "transformers"),
        command=command,
        ambiguous_environments=_ambiguous_environments(played, known),
    )
    _write(evaluation)
    return evaluation


evaluate_sync = to_sync(evaluate)
"""`evaluate` for callers that do not await; also works in a notebook."""


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
    mixture: Mixture,
    candidate: Candidate,
    folder: Path,
    config: EvalConfig,
    progress: CollectProgress,
) -> CollectResult:
    """Play a candidate's episodes. Its agent is closed at the end: one model in memory at once."""
    async with candidate.make_agent() as agent:
        # Whether to resume was decided for the folder of the evaluation.
        rollout = replace(CollectConfig.from_rollout(config, agent), resume=True)
        return await collect(mixture, folder, rollout, progress=progress)


def _check_labels(candidates: Sequence[Candidate]) -> None:
    if not candidates:
        raise ConfigError("No candidates given. Give at least one as `candidate`, such as oracle.")
    taken: dict[str, str] = {name.casefold(): name for name in OUTPUT_FILES}
    for label in (candidate.label for candidate in candidates):
        if label.casefold() in taken:
            raise ConfigError(
                f"Two candidates are called {label!r}. "
                "Give each `candidate` a label of its own, such as base=… and sft=…"
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


def _write(evaluation: Evaluation) -> None:
    with atomic_output(evaluation.folder) as draft:
        summary = dump_json(evaluation.as_json(), indent=2)
        (draft / SUMMARY_FILE).write_text(f"{summary}\n", encoding="utf-8")
        (draft / REPORT_FILE).write_text(render_report(evaluation), encoding="utf-8")
        (draft / CHART_FILE).write_text(render_chart(evaluation), encoding="utf-8")
