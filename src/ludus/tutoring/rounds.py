"""The finished rounds of a tutor, and the folder that they are kept in.

out/
  tutor.json             settings, and the metrics of the finished rounds; written last in a round
  rounds/N/tutor         run folder: episodes that the tutor played itself
  rounds/N/student       run folder: episodes of the student, with the tutor's replies
  rounds/N/data          rows of all rounds so far
  rounds/N/model         the model after the round; only the latest stays
  rounds/N/held_out      run folder: held-out tasks, played by that model
  *                      the model that is kept so far, with the record of its training
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.curation.labelled_turns import count_agreement
from ludus.data.config import describe_differences
from ludus.data.episode import Episode
from ludus.data.files import LOCK_FILE, write_atomically
from ludus.data.interval_estimates import TaskRewards
from ludus.data.json_files import to_jsonable
from ludus.data.tool_schema import JsonObject
from ludus.errors import OtherSettings, RunError
from ludus.train.output.model_card import build_model_card
from ludus.train.output.record import read_record
from ludus.train.output.training_folder import CARD_FILE, remove_run
from ludus.train.result import TrainResult

STATE_FILE = "tutor.json"
ROUNDS_DIR = "rounds"


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """What one round brought."""

    number: int
    tutor_episodes: int
    student_episodes: int
    rows: int
    """Rows of all rounds so far, on which the model was trained."""
    agreement: float | None
    """Share of the student's turns in which it agreed with the tutor, before this training."""
    reward: float | None
    """Mean reward on held-out tasks, after this training."""
    success: float | None
    """Share of the held-out tasks that are solved."""
    steps: int
    loss: float | None
    seconds: float

    def as_json(self) -> JsonObject:
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"Round {self.number}: {self.rows:,} rows"]
        if self.agreement is not None:
            parts.append(f"agreement before {self.agreement:.1%}")
        if self.success is not None and self.reward is not None:
            parts.append(f"held-out success {self.success:.1%}, reward {self.reward:.3f}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class TutorResult(TrainResult):
    """What `tutor` returns: the training of the model that is kept, and all finished rounds."""

    rounds: tuple[RoundMetrics, ...] = ()
    kept_round: int | None = None


@dataclass(slots=True)
class RoundLog:
    """The finished rounds in an output folder."""

    out: Path
    settings: JsonObject
    rounds: list[RoundMetrics] = field(default_factory=list)
    kept_round: int | None = None

    @classmethod
    def open(cls, out: Path, settings: JsonObject, *, overwrite: bool = False) -> RoundLog:
        """Read the rounds of a folder, or start in an empty one; raises for other settings."""
        settings = to_jsonable(settings)
        names = sorted(path.name for path in out.iterdir() if path.name != LOCK_FILE)
        if names and STATE_FILE not in names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise RunError(
                f"{out} is not empty ({names[0]}{more}) and holds no rounds of a tutor: there is "
                f"no {STATE_FILE} in it. Use another `out`."
            )
        if overwrite:
            shutil.rmtree(out / ROUNDS_DIR, ignore_errors=True)
            remove_run(out)
        elif names:
            try:
                stored = json.loads((out / STATE_FILE).read_bytes())
                rounds = [RoundMetrics(**each) for each in stored["rounds"]]
                before, kept = stored["settings"], stored["kept_round"]
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(f"{out / STATE_FILE} cannot be read: {error}.") from error
            if differences := list(describe_differences(before, settings)):
                raise OtherSettings(
                    f"{out} holds rounds with other settings ({'; '.join(differences[:8])}). Set "
                    "`overwrite` to replace them, or use another `out`."
                )
            return cls(out, settings, rounds, kept)
        log = cls(out, settings)
        log._write()
        return log

    def result(self, stopped: str | None = None) -> TutorResult:
        record = read_record(self.out)
        metrics = record.metrics if record is not None else None
        return TutorResult(
            folder=self.out,
            steps=sum(each.steps for each in self.rounds),
            loss=metrics.last_loss if metrics is not None else None,
            seconds=sum(each.seconds for each in self.rounds),
            tokens=(metrics.tokens or 0) if metrics is not None else 0,
            stopped=stopped,
            rounds=tuple(self.rounds),
            kept_round=self.kept_round,
        )

    def folder(self, number: int, name: str) -> Path:
        return self.out / ROUNDS_DIR / str(number) / name

    def data_runs(self, number: int) -> list[Path]:
        """The run folders of all rounds up to this one that are trained on."""
        runs = [self.folder(n, name) for n in range(1, number + 1) for name in ("tutor", "student")]
        return [run for run in runs if run.exists()]

    def is_best(self, metrics: RoundMetrics) -> bool:
        """Whether no round before has a better held-out reward."""
        before = [each.reward for each in self.rounds if each.reward is not None]
        return metrics.reward is not None and metrics.reward >= max(before, default=metrics.reward)

    def add(self, metrics: RoundMetrics, *, keep: bool) -> None:
        """Record a finished round. With `keep` its model goes to the output folder."""
        if keep:
            remove_run(self.out)
            # Files are linked, so that they take space once.
            model = self.folder(metrics.number, "model")
            shutil.copytree(model, self.out, copy_function=_link_or_copy, dirs_exist_ok=True)
            if (record := read_record(self.out)) is not None:
                card = build_model_card(record, name=str(self.out))
                write_atomically(self.out / CARD_FILE, card)
            self.kept_round = metrics.number
        self.rounds.append(metrics)
        self._write()
        shutil.rmtree(self.folder(metrics.number - 1, "model"), ignore_errors=True)

    def _write(self) -> None:
        state = {
            "version": 1,
            "settings": self.settings,
            "rounds": [each.as_json() for each in self.rounds],
            "kept_round": self.kept_round,
        }
        write_atomically(self.out / STATE_FILE, json.dumps(state, indent=2) + "\n")


def measure_agreement(episodes: Iterable[Episode]) -> float | None:
    """The share of labelled turns in which student and tutor agree."""
    counts = [count_agreement(episode) for episode in episodes]
    labelled = sum(number for _, number in counts)
    return sum(agreed for agreed, _ in counts) / labelled if labelled else None


def measure_play(
    episodes: Iterable[Episode], solved_at: float
) -> tuple[float | None, float | None]:
    """The mean reward, and the share of solved episodes."""
    rewards, solved = TaskRewards(), TaskRewards()
    for episode in episodes:
        if episode.reward is not None and not episode.broken:
            rewards.add(episode.group_id, episode.reward)
            solved.add(episode.group_id, float(episode.reward >= solved_at))
    return rewards.mean, solved.mean


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
