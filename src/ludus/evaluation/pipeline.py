"""`evaluate`: candidates play the same tasks one after the other, and are compared.

The episodes of each candidate are a run of their own, in a folder below that of the evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ludus.client.event_loop import to_sync
from ludus.data.files import lock_dir
from ludus.data.run_folder import RunFolder, find_unused_dir, versions
from ludus.environment.mixture import Mixture
from ludus.evaluation.candidates import (
    Candidate,
    check_labels,
    check_local_models,
    parse_candidates,
)
from ludus.evaluation.config import EvalConfig
from ludus.evaluation.contamination import find_ambiguous_environments, load_known_questions
from ludus.evaluation.metrics import build_metrics, load_attempts
from ludus.evaluation.output_dir import (
    OUTPUT_FILES,
    check_folder,
    default_folder,
    is_candidate_complete,
)
from ludus.evaluation.report import write_report
from ludus.evaluation.results import CandidateAttempts, Evaluation, score_candidates
from ludus.evaluation.slices import build_slices
from ludus.rollout.collect import collect
from ludus.rollout.config import CollectConfig
from ludus.rollout.progress import CandidateStarted, ProgressCallback, ignore_progress


async def evaluate(
    env: str | Mixture,
    candidates: Sequence[Candidate | str],
    out: str | Path | None = None,
    config: EvalConfig | None = None,
    *,
    progress: ProgressCallback = ignore_progress,
    command: str | None = None,
) -> Evaluation:
    """Let all candidates play the same tasks, and write a report to `out`.

    Episodes that are recorded already are not played again, and a candidate that has played all of
    them is not loaded.

    Args:
        env: the environment: a spec such as `wordle`, a URL, or a mixture of several.
        candidates: agents to compare with the first one; a text such as "base=smollm2" or
            "openai:gpt-5-mini" is parsed.
        out: the folder. By default it is named after the settings, below `evals/`.
        config: which tasks are played, and how they are scored.
        progress: called with each event, such as `ludus.progress()`.
        command: the command line, for the report.
    """
    config = config or EvalConfig()
    parsed = [
        candidate if isinstance(candidate, Candidate) else parse_candidates([candidate])[0]
        for candidate in candidates
    ]
    check_labels(parsed, reserved=OUTPUT_FILES)
    mixture, num_episodes = config.parse_environment(env), config.total_episodes
    if config.base_url is None:
        mixture.check_installed()
    known = None
    if config.exclude_tasks_in is not None:
        known = load_known_questions(Path(config.exclude_tasks_in))
    settings = {each.label: config.identity(mixture, each.agent) for each in parsed}
    shared = {key: value for key, value in settings[parsed[0].label].items() if key != "agent"}
    folder = default_folder(str(mixture), settings) if out is None else Path(out)
    if not config.resume:
        folder = find_unused_dir(folder)
    with lock_dir(folder):
        check_folder(folder, shared)
        incomplete = [
            each
            for each in parsed
            if not is_candidate_complete(folder / each.label, settings[each.label], config)
        ]
        await check_local_models(incomplete, progress)
        played, stop_request, complete = list[CandidateAttempts](), None, True
        for candidate in parsed:
            progress(CandidateStarted(candidate.label))
            # The agent is closed before the next one plays: one model in memory at a time.
            async with candidate.agent as agent:
                # Whether to resume was decided for the folder of the evaluation.
                collect_config = replace(CollectConfig.from_rollout(config, agent), resume=True)
                result = await collect(
                    env, folder / candidate.label, collect_config, progress=progress
                )
            attempts = load_attempts(RunFolder.open(result.folder), num_episodes)
            agent_settings = settings[candidate.label]["agent"]
            played.append(CandidateAttempts(candidate.label, agent_settings, attempts))
            stop_request, complete = result.stop_reason, result.summary["complete"]
            if stop_request is not None:
                complete = complete and len(played) == len(parsed)
                break
        ambiguous = set[str]()
        if known is not None:
            for each in played:
                ambiguous.update(find_ambiguous_environments(each.attempts, known))
        metrics = build_metrics(config.solved_at, config.shown_pass_k)
        counted = [each if known is None else each.without(known) for each in played]
        evaluation = Evaluation(
            folder=folder,
            settings={"episodes": num_episodes, **shared},
            metrics=metrics,
            scores=score_candidates(played, counted, metrics, num_episodes),
            slices=build_slices([each.attempts for each in counted], metrics),
            solved_at=config.solved_at,
            not_in=None if config.exclude_tasks_in is None else str(config.exclude_tasks_in),
            stopped=None if complete else stop_request,
            stop_request=stop_request,
            versions=versions("torch", "transformers"),
            command=command,
            ambiguous_environments=tuple(sorted(ambiguous)),
        )
        write_report(evaluation)
        return evaluation


evaluate_sync = to_sync(evaluate)
"""`evaluate` for callers that do not await; also works in a notebook."""
