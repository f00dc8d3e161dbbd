"""`tutor`: rounds in which a model plays, a tutor corrects it, and it is trained (DAgger)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from ludus.agents.agent import Agent
from ludus.client.event_loop import run_sync
from ludus.curation.config import CurateConfig
from ludus.curation.pipeline import curate
from ludus.data.episode_reader import episodes
from ludus.data.files import lock_dir
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.errors import ConfigError
from ludus.policy.device import release_gpu_memory
from ludus.policy.model_ref import check_model, fingerprint_model, resolve_model
from ludus.rollout.collect import CollectResult, collect
from ludus.rollout.config import CollectConfig
from ludus.rollout.episode_run import EpisodeRun
from ludus.rollout.progress import Notice, PhaseProgress, ProgressEvent, RunStarted
from ludus.train.config import with_defaults
from ludus.train.offline import sft
from ludus.train.output.training_folder import check_model_outside
from ludus.train.result import NoProgress, TrainProgress
from ludus.train.trl_config import parse_overrides
from ludus.tutoring.config import TutorConfig
from ludus.tutoring.rounds import (
    RoundLog,
    RoundMetrics,
    TutorResult,
    measure_agreement,
    measure_play,
)


class Stopped(Exception):
    """The user has asked to stop; what was done is kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TutorProgress:
    """A training's progress, with the round in every phase.

    Called with the events of `collect`, it shows episodes as a phase, and stops when the training
    is to stop.
    """

    def __init__(self, progress: TrainProgress, number: int, total: int) -> None:
        self._progress = progress
        self._prefix = f"Round {number} of {total}: "
        self._episodes = PhaseProgress()
        self._run: EpisodeRun | None = None

    def phase(self, progress: PhaseProgress) -> None:
        # The phase stays the same object: whoever does the work updates its counts.
        progress.phase = f"{self._prefix}{progress.phase[:1].lower()}{progress.phase[1:]}"
        self._progress.phase(progress)

    def begin(self, total_steps: int, resumed_from: int | None) -> None:
        self._progress.begin(total_steps, resumed_from)

    def step(self, line: Mapping[str, object]) -> None:
        self._progress.step(line)

    def say(self, words: str) -> None:
        self._progress.say(words)

    @property
    def stopping(self) -> str | None:
        return self._progress.stopping

    def play(self, phase: str, environments: Mixture, run: Path, config: CollectConfig) -> None:
        """Collect the rest of a run's episodes. Raises `Stopped` on request."""

        async def main() -> CollectResult:
            async with AsyncExitStack() as stack:
                for agent in (config.agent, config.tutor):
                    if agent is not None:
                        await stack.enter_async_context(agent)
                return await collect(environments, run, config, progress=self)

        self._episodes = PhaseProgress(phase, None, "episodes", in_log=True)
        try:
            result = run_sync(main())
        finally:
            release_gpu_memory()
        reason = result.stop_reason or self.stopping
        if reason is not None:
            raise Stopped(reason)

    def __call__(self, event: ProgressEvent) -> None:
        match event:
            case PhaseProgress():
                self.phase(event)
            case Notice():
                self.say(event.message)
            case RunStarted():
                self._run = event.run
                self._episodes.total = event.run.stats.planned
                self.phase(self._episodes)
        if self._run is not None:
            self._episodes.advance(self._run.stats.done - self._episodes.done)
            if self.stopping is not None:
                self._run.drain(self.stopping)


_DEFAULT_CONFIG = TutorConfig()


def tutor(
    env: str | Mixture,
    model: str | Path,
    out: str | Path,
    config: TutorConfig = _DEFAULT_CONFIG,
    *,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TutorResult:
    """Teach a model an environment in rounds: play, label, train. The model is written to `out`.

    In each round some episodes are played by the tutor, the others by the model of the last round,
    whose every state the tutor labels. Then `model` is trained on the rows of all rounds.

    Args:
        env: A spec, a server's address or a mixture of them, as for `ludus.collect`.
        model: A folder, a name on the Hub, or the name of a model that Ludus knows.
        out: The output folder. Finished rounds in it are kept, an interrupted one is continued, and
            more `config.rounds` may follow.
        config: The rounds, the tutor, and how to train.
        overwrite: Replace rounds with another config, instead of raising.
        command: The command line, for the record and the model card.
        progress: Receives the progress, and can stop it.
    """
    model, out, progress = str(model), Path(out).expanduser(), progress or NoProgress()
    environments = parse_mixture(env) if isinstance(env, str) else env
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("The rounds of a tutor run in one process. Start it without a launcher.")
    if config.base_url is None:
        environments.check_installed()
    check_model(model, device=config.train.device, dtype=config.train.precision)
    parse_overrides("sft", with_defaults(config.train, "sft").overrides)
    check_model_outside(out, resolve_model(model))
    settings = {
        "environment": str(environments),
        "model": model,
        "weights": fingerprint_model(model),
        **config.as_json(),
    }
    with lock_dir(out):
        log = RoundLog.open(out, settings, overwrite=overwrite)
        # From here on a stop is one between two episodes or steps.
        progress.begin(0, None)
        try:
            while len(log.rounds) < config.rounds:
                number = len(log.rounds) + 1
                shown = TutorProgress(progress, number, config.rounds)
                metrics = _run_round(environments, model, log, number, config, command, shown)
                log.add(metrics, keep=config.keep == "last" or log.is_best(metrics))
                progress.say(str(metrics))
        except Stopped as stop:
            return log.result(stop.reason)
        return log.result()


def _run_round(
    environments: Mixture,
    model: str,
    log: RoundLog,
    number: int,
    config: TutorConfig,
    command: str | None,
    progress: TutorProgress,
) -> RoundMetrics:
    """Play, curate, train and evaluate; every stage resumes what was interrupted."""
    started = time.monotonic()
    trained = log.folder(number, "model")
    tutor_episodes = config.tutor_episodes(number)
    student_episodes = config.episodes - tutor_episodes
    agreement = None
    if tutor_episodes:
        own = config.play_config(f"tutor/{number}", tutor_episodes)
        progress.play("The tutor plays", environments, log.folder(number, "tutor"), own)
    if student_episodes:
        before = str(log.folder(number - 1, "model")) if number > 1 else model
        taught = config.student_config(number, _student(before, config.temperature, config))
        run = log.folder(number, "student")
        progress.play("The student plays", environments, run, taught)
        agreement = measure_agreement(episodes(run))
    progress.phase(PhaseProgress("Curating", in_log=True))
    data = log.folder(number, "data")
    # Duplicates stay: rows are as frequent as the states in which the student needs them, and a
    # game with few states is not learned from a handful of rows.
    report = curate(log.data_runs(number), data, CurateConfig(dedupe=False), overwrite=True)
    # A correction is the end of its row: if that is cut off, the row has no loss.
    train = replace(config.train, drop_untrainable=True)
    result = sft(data, model, trained, train, command=command, progress=progress)
    if result.stopped is not None:
        raise Stopped(result.stopped)
    held_out = config.held_out_config(_student(str(trained), 0.0, config))
    run = log.folder(number, "held_out")
    progress.play("Playing held-out tasks", environments, run, held_out)
    reward, success = measure_play(episodes(run), config.solved_at)
    return RoundMetrics(
        number=number,
        tutor_episodes=tutor_episodes,
        student_episodes=student_episodes,
        rows=report.rows["train"],
        agreement=agreement,
        reward=reward,
        success=success,
        steps=result.steps,
        loss=result.loss,
        seconds=round(time.monotonic() - started, 1),
    )


def _student(model: str, temperature: float, config: TutorConfig) -> Agent:
    from ludus.policy.agent import PolicyAgent

    return PolicyAgent(
        model,
        temperature=temperature,
        device=config.train.device,
        chat_template_kwargs=config.train.chat_template_kwargs,
    )
