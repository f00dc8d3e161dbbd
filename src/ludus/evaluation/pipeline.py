"""`evaluate`: candidates play the same tasks one after the other, and are compared.

evals/chain_sum-1a2b3c4d/
  base/  sft/       a run folder for each candidate
  summary.json      all results, for programs
  README.md         the report
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic_core import from_json

from ludus.client.event_loop import to_sync
from ludus.data.config import config_digest, describe_differences
from ludus.data.files import atomic_dir, existing_files, lock_dir
from ludus.data.json_files import dump_json, numbered_lines, object_field, to_jsonable
from ludus.data.messages import prompt_text
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE, RunFolder, find_unused_dir, versions
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture
from ludus.errors import ConfigError, OtherSettings, RunError
from ludus.evaluation.candidates import (
    Candidate,
    check_labels,
    check_local_models,
    parse_candidates,
)
from ludus.evaluation.config import EvalConfig
from ludus.evaluation.metrics import Attempt, build_metrics, load_attempts
from ludus.evaluation.results import CandidateAttempts, Evaluation, score_candidates
from ludus.evaluation.slices import build_slices
from ludus.evaluation.table import render_report
from ludus.rollout.collect import collect
from ludus.rollout.config import CollectConfig
from ludus.rollout.progress import (
    CandidateStarted,
    Notice,
    ProgressCallback,
    ProgressEvent,
    ignore_progress,
)

EVALS_DIR = Path("evals")
REPORT_FILE = "README.md"
OUTPUT_FILES = (SUMMARY_FILE, REPORT_FILE)
_DRAFT_PREFIX = ".evaluating-"
_MAX_DIFFERENCES_SHOWN = 4
_DATA_FILES = ("train.jsonl", "episodes.jsonl")


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
    source, known = config.exclude_tasks_in, frozenset[str]()
    if source is not None:
        known = load_known_tasks(Path(source))
    settings = {each.label: config.identity(mixture, each.agent) for each in parsed}
    shared = {key: value for key, value in settings[parsed[0].label].items() if key != "agent"}
    if out is None:
        name = re.sub(r"[^A-Za-z0-9._]+", "-", str(mixture)).strip("-")[:60]
        # The same candidates on the same tasks get the same folder.
        out = EVALS_DIR / f"{name}-{config_digest(dict(settings))}"
    folder = Path(out)
    if not config.resume:
        folder = find_unused_dir(folder)
    with lock_dir(folder):
        _check_folder(folder, shared)
        incomplete = [
            each
            for each in parsed
            if not _is_complete(folder / each.label, settings[each.label], config)
        ]
        await check_local_models(incomplete, progress)
        played, stop_request, complete = list[CandidateAttempts](), None, True
        said = set[str]()

        def report(event: ProgressEvent) -> None:
            """Report progress, but each notice only once for all candidates."""
            if not isinstance(event, Notice) or event.message not in said:
                progress(event)
            if isinstance(event, Notice):
                said.add(event.message)

        for candidate in parsed:
            progress(CandidateStarted(candidate.label))
            # Close each agent before the next one plays: one model in memory at a time.
            async with candidate.agent as agent:
                # Whether to resume was decided for the folder of the evaluation.
                collect_config = replace(CollectConfig.from_rollout(config, agent), resume=True)
                result = await collect(
                    env, folder / candidate.label, collect_config, progress=report
                )
            recorded = load_attempts(RunFolder.open(result.folder), num_episodes)
            attempts = exclude_known(recorded, known)
            agent_settings = settings[candidate.label]["agent"]
            excluded = len(recorded) - len(attempts)
            played.append(
                CandidateAttempts(candidate.label, agent_settings, attempts, contaminated=excluded)
            )
            stop_request, complete = result.stop_reason, result.summary["complete"]
            if stop_request is not None:
                complete = complete and len(played) == len(parsed)
                break
        # The default is the only one that is not the accuracy.
        default_k = (config.group_size,) if config.group_size > 1 else ()
        metrics = build_metrics(config.solved_at, sorted(set(config.pass_k)) or default_k)
        evaluation = Evaluation(
            folder=folder,
            settings={"episodes": num_episodes, **shared},
            metrics=metrics,
            scores=score_candidates(played, metrics, num_episodes),
            slices=build_slices([each.attempts for each in played], metrics),
            solved_at=config.solved_at,
            exclude_tasks_in=None if source is None else str(source),
            stopped=None if complete else stop_request,
            stop_request=stop_request,
            versions=versions("torch", "transformers"),
            command=command,
        )
        with atomic_dir(folder, _DRAFT_PREFIX, marker=SUMMARY_FILE, owned=OUTPUT_FILES) as draft:
            summary = dump_json(evaluation.as_json(), indent=2)
            (draft / SUMMARY_FILE).write_text(f"{summary}\n", encoding="utf-8")
            (draft / REPORT_FILE).write_text(render_report(evaluation), encoding="utf-8")
        return evaluation


evaluate_sync = to_sync(evaluate)
"""`evaluate` for callers that do not await; also works in a notebook."""


def _check_folder(folder: Path, settings: JsonObject) -> None:
    """Raise RunError for a folder with other content than an evaluation, or than run folders.

    Raises OtherSettings for an evaluation on other tasks, which would be replaced; `settings` are
    the ones that all candidates share.
    """
    if (folder / RUN_FILE).exists():
        raise RunError(f"{folder} holds a run, not an evaluation. Use another `out`.")
    try:
        summary = from_json((folder / SUMMARY_FILE).read_bytes())
    except (OSError, ValueError):
        summary = None
    is_evaluation = isinstance(summary, dict) and summary.get("kind") == "eval"
    for name in existing_files(folder, _DRAFT_PREFIX):
        is_own = is_evaluation if name in OUTPUT_FILES else (folder / name / RUN_FILE).exists()
        if not (is_own or name.startswith(".")):
            raise RunError(
                f"{folder} is not empty ({name}) and holds no evaluation. Use another `out`."
            )
    before = dict(object_field(summary, "settings")) if is_evaluation else {}
    before.pop("episodes", None)
    if before and (differences := list(describe_differences(before, to_jsonable(settings)))):
        shown = "; ".join(differences[:_MAX_DIFFERENCES_SHOWN])
        raise OtherSettings(
            f"{folder} holds an evaluation with other settings ({shown}). Use another `out`, or "
            "`resume=False` to write beside it."
        )


def _is_complete(folder: Path, settings: JsonObject, config: EvalConfig) -> bool:
    """Whether a candidate's folder has all episodes; raises for a run with other settings."""
    if not (folder / RUN_FILE).exists():
        return False
    attempts = load_attempts(RunFolder.resume_or_create(folder, settings), config.total_episodes)
    if config.retry_broken and any(attempt.broken for attempt in attempts):
        return False
    return len(attempts) == config.total_episodes


def load_known_tasks(source: Path) -> frozenset[str]:
    """Load ids and prompts of tasks not to evaluate on from a data set, a run or a file of rows.

    In small task spaces, another seed may give the same question again. So prompts are compared
    too, by their exact text.
    """
    files = [source / name for name in _DATA_FILES] if source.is_dir() else [source]
    file = next((file for file in files if file.is_file()), None)
    if file is None or file.suffix == ".parquet":
        raise ConfigError(
            f"`exclude_tasks_in` must be a JSONL file or a folder with {' or '.join(_DATA_FILES)}, "
            f"got {source}. `ludus curate` writes such a folder."
        )
    known = set[str]()
    for number, line in numbered_lines(file):
        try:
            row = from_json(line)
            messages = row["prompt"] if "prompt" in row else row["messages"]
            # As `Attempt.prompt` has it for episodes.
            known.add(prompt_text(messages, image_text="[image]"))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{file}:{number} has neither messages nor a prompt.") from None
        if isinstance(task := row.get("group_id"), str):
            known.add(task)
    return frozenset(known)


def exclude_known(attempts: Sequence[Attempt], known: frozenset[str]) -> list[Attempt]:
    """Return the attempts whose task and prompt are not known.

    If all tasks of an environment have the same prompt, as in a game whose secret is not shown,
    the prompt identifies nothing, and only the task id counts.
    """
    tasks, prompts = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for each in attempts:
        tasks[each.environment].add(each.task)
        prompts[each.environment].add(each.prompt)
    unspecific = {name for name in tasks if len(prompts[name]) == 1 < len(tasks[name])}
    return [
        each
        for each in attempts
        if each.task not in known and (each.prompt not in known or each.environment in unspecific)
    ]
