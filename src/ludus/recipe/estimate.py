"""Rough estimates of a stage's time, tokens and cost, before it runs.

Tokens come from a few episodes that the environment's oracle plays; times from the speed of a model
of 135 million parameters (docs/benchmarks.md), in proportion to size and cores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from ludus.agents.api_agent import PriceTable
from ludus.agents.api_keys import API_PROVIDERS
from ludus.data.episode import Episode, Usage
from ludus.data.episode_reader import episodes
from ludus.data.json_files import dump_json
from ludus.environment.registry import is_remote
from ludus.environment.task_buckets import parse_axes
from ludus.errors import LudusError
from ludus.evaluation.config import EvalConfig
from ludus.evaluation.results import detectable_effect, episodes_to_detect
from ludus.recipe.recipe_file import Stage
from ludus.rollout.collect import collect_sync
from ludus.rollout.config import CollectConfig
from ludus.rollout.plan import read_tasks
from ludus.rollout.process_worker import available_cores
from ludus.train.config import DEFAULT_BATCH_SIZE, DEFAULT_EPOCHS

_REFERENCE_PARAMETERS = 135e6
_REFERENCE_CORES = 2
_TRAIN_TOKENS_PER_S = {"cpu": 170.0, "gpu": 200_000.0}
_DECODE_TOKENS_PER_S = {"cpu": 150.0, "gpu": 40_000.0}
_START_S, _LOAD_S = 2.0, 10.0
_ORACLE_EPISODES_PER_S = 500.0
_API_CALL_S, _API_REPLY_TOKENS = 6.0, 300
_REPLY_TOKENS, _TUTOR_REPLY_TOKENS = 100, 40
"""Tokens of a local model's reply: before training, and of one that learns a tutor's replies."""
_PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """The length of an episode."""

    turns: float = 1.0
    tokens: float = 250.0
    """All tokens of the conversation at its end, with the system prompt and tools."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a stage is expected to take."""

    seconds: float
    tokens: float = 0.0
    """Tokens that models read and write, or are trained on."""
    cost: float | None = None
    """US dollars; None if nothing is paid, or no price is known."""
    warnings: tuple[str, ...] = ()


Probe = Callable[[Stage], EpisodeShape]


@dataclass
class Estimator:
    """Estimates the stages of a recipe in their order: later ones build on earlier ones."""

    probe: Probe
    device: str = "cpu"
    _episodes: dict[str, int] = field(default_factory=dict)
    """Episodes of each stage that collects, or rows of each that curates."""
    _shapes: dict[str, EpisodeShape] = field(default_factory=dict)
    _models: dict[str, str] = field(default_factory=dict)
    """The base model of each stage that trains."""

    def estimate(self, stage: Stage) -> Estimate:
        """Estimate a stage, whose options hold the defaults of its command, too."""
        estimators: Mapping[str, Callable[[Stage], Estimate]] = {
            "collect": self._collect,
            "curate": self._curate,
            "sft": self._offline,
            "dpo": self._offline,
            "tutor": self._tutor,
            "grpo": self._grpo,
            "eval": self._evaluate,
        }
        estimate = estimators.get(stage.command)
        return Estimate(_START_S) if estimate is None else estimate(stage)

    def _collect(self, stage: Stage) -> Estimate:
        options, shape = stage.options, self._shape(stage)
        count = _count_episodes(stage, CollectConfig.default_num_episodes)
        self._episodes[stage.name] = count
        if agent := options.get("agent"):
            provider, model = _split_candidate(str(agent))
        else:
            model = str(options.get("model", ""))
            provider = str(options.get("provider") or ("hf" if model else "oracle"))
        return self._play(stage, provider, model, count, shape)

    def _curate(self, stage: Stage) -> Estimate:
        self._episodes[stage.name] = sum(self._episodes.get(name, 0) for name in stage.inputs)
        if shapes := [self._shapes[name] for name in stage.inputs if name in self._shapes]:
            self._shapes[stage.name] = shapes[0]
        return Estimate(_START_S + (_LOAD_S / 2 if "student" in stage.options else 0))

    def _offline(self, stage: Stage) -> Estimate:
        """SFT and DPO: tokens of the rows, times epochs; DPO also reads a reference model."""
        options, is_dpo = stage.options, stage.command == "dpo"
        source = next(iter(stage.inputs), "")
        shape = self._shapes.get(source, EpisodeShape())
        epochs = float(options.get("epochs") or DEFAULT_EPOCHS[stage.command])
        rows = self._episodes.get(source, 0) * epochs
        if steps := options.get("steps"):
            rows = int(steps) * _rows_per_step(stage)
        tokens = rows * shape.tokens * (2 if is_dpo else 1)
        seconds = self._train_seconds(stage, tokens * (1.5 if is_dpo else 1))
        return Estimate(_START_S + _LOAD_S + seconds, tokens)

    def _tutor(self, stage: Stage) -> Estimate:
        options, shape = stage.options, self._shape(stage)
        rounds, episodes = int(options["rounds"]), int(options["episodes"])
        epochs = float(options.get("epochs") or DEFAULT_EPOCHS["sft"])
        trained = sum(range(1, rounds + 1)) * episodes * epochs * shape.tokens
        if steps := options.get("steps"):
            trained = rounds * int(steps) * _rows_per_step(stage) * shape.tokens
        held_out = rounds * int(options["eval_episodes"])
        sampled = (rounds * episodes / 2 + held_out) * shape.turns * _TUTOR_REPLY_TOKENS
        seconds = self._train_seconds(stage, trained) + self._decode_seconds(stage, sampled)
        return Estimate(_START_S + 2 * rounds * _LOAD_S + seconds, trained + sampled)

    def _grpo(self, stage: Stage) -> Estimate:
        options, shape = stage.options, self._shape(stage)
        group_size = int(options["group_size"])
        episodes = int(options["steps"]) * int(options["groups"]) * group_size
        sampled = episodes * int(options["max_episode_tokens"]) / 4
        # The prompt is computed once for all episodes of a group.
        trained = sampled + episodes * shape.tokens / group_size
        seconds = self._train_seconds(stage, trained) + self._decode_seconds(stage, sampled)
        return Estimate(_START_S + _LOAD_S + seconds, sampled + trained)

    def _evaluate(self, stage: Stage) -> Estimate:
        options, shape = stage.options, self._shape(stage)
        count = _count_episodes(stage, EvalConfig.default_num_episodes)
        candidates = options.get("candidate", ())
        if isinstance(candidates, Mapping):
            candidates = [f"{label}={agent}" for label, agent in candidates.items()]
        elif not isinstance(candidates, list):
            candidates = [candidates]
        estimates = [
            self._play(stage, *_split_candidate(str(each)), count, shape) for each in candidates
        ]
        warnings: tuple[str, ...] = ()
        needed = episodes_to_detect(stage.min_effect)
        if len(candidates) > 1 and count < needed:
            warnings = (
                f"[{stage.name}] {count:,} episodes show differences from "
                f"{100 * detectable_effect(count):.0f} points on; to show "
                f"{100 * stage.min_effect:g} points, use num_episodes = "
                f"{ceil(needed / _count_levels(stage)):,}",
            )
        costs = [each.cost for each in estimates if each.cost is not None]
        return Estimate(
            sum(each.seconds for each in estimates),
            sum(each.tokens for each in estimates),
            sum(costs) if costs else None,
            warnings,
        )

    def _play(
        self,
        stage: Stage,
        provider: str,
        model: str,
        episodes: int,
        shape: EpisodeShape,
    ) -> Estimate:
        """Estimate episodes that an agent plays."""
        if provider in API_PROVIDERS:
            # Each call sends the conversation so far.
            prompt = round(episodes * shape.tokens * (shape.turns + 1) / 2)
            reply = round(episodes * shape.turns * _API_REPLY_TOKENS)
            calls = episodes * shape.turns / min(episodes, int(stage.options["concurrency"]))
            price = PriceTable.load(stage.options.get("prices")).price_for(
                provider, model, endpoint_given="llm_endpoint" in stage.options
            )
            usage = Usage(prompt_tokens=prompt, completion_tokens=reply)
            cost = None if price is None else price(usage)
            return Estimate(_START_S + calls * _API_CALL_S, prompt + reply, cost)
        if provider != "hf":
            return Estimate(_START_S + episodes / _ORACLE_EPISODES_PER_S)
        limit = int(stage.options["max_tokens"])
        sampled = episodes * shape.turns * min(limit / 2, _REPLY_TOKENS)
        seconds = sampled / self._rate(_DECODE_TOKENS_PER_S, model)
        return Estimate(_START_S + _LOAD_S + seconds, sampled)

    def _shape(self, stage: Stage) -> EpisodeShape:
        if stage.name not in self._shapes:
            self._shapes[stage.name] = self.probe(stage)
        return self._shapes[stage.name]

    def _train_seconds(self, stage: Stage, tokens: float) -> float:
        return tokens / self._rate(_TRAIN_TOKENS_PER_S, self._base_model(stage))

    def _decode_seconds(self, stage: Stage, tokens: float) -> float:
        return tokens / self._rate(_DECODE_TOKENS_PER_S, self._base_model(stage))

    def _base_model(self, stage: Stage) -> str:
        model = str(stage.options.get("model", ""))
        self._models[stage.name] = self._models.get(model.strip("{}"), model)
        return self._models[stage.name]

    def _rate(self, rates: Mapping[str, float], model: str) -> float:
        """Tokens per second of a model on this machine."""
        model = self._models.get(model.strip("{}"), model)
        cores = available_cores() / _REFERENCE_CORES if self.device == "cpu" else 1.0
        return rates[self.device] * cores * _REFERENCE_PARAMETERS / count_parameters(model)


def _count_episodes(stage: Stage, default: int) -> int:
    """How many episodes an agent plays: `num_episodes`, for each value of `sweep`, of `tasks`."""
    options = stage.options
    given = int(options.get("num_episodes") or 0)
    tasks = options.get("tasks")
    if isinstance(tasks, str) and (file := Path(tasks).expanduser()).is_file():
        available = len(read_tasks(file)) * int(options.get("group_size") or 1)
        return min(given or available, available)
    return _count_levels(stage) * (given or default)


def _count_levels(stage: Stage) -> int:
    """The number of combinations of values of `sweep`."""
    sweep = stage.options.get("sweep") or ()
    if isinstance(sweep, Mapping):
        sweep = [f"{name}={values}" for name, values in sweep.items()]
    axes = parse_axes([sweep] if isinstance(sweep, str) else sweep, option="sweep")
    return prod(len(axis.values) for axis in axes)


def count_parameters(model: str) -> float:
    """Parameters of a model, from its name (`Qwen3-0.6B`) or the size of its files."""
    weights = sum(file.stat().st_size for file in Path(model).glob("*.safetensors") if model)
    if weights:
        return weights / 2
    if match := _PARAMETERS.search(model):
        return float(match[1]) * (1e9 if match[2].lower() == "b" else 1e6)
    return _REFERENCE_PARAMETERS


def detect_device() -> str:
    """`gpu` if an NVIDIA or AMD GPU is visible, else `cpu`; without loading PyTorch."""
    return "gpu" if Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists() else "cpu"


def _rows_per_step(stage: Stage) -> int:
    batch_size = int(stage.options.get("batch_size") or DEFAULT_BATCH_SIZE)
    return batch_size * int(stage.options["gradient_accumulation_steps"])


def _split_candidate(candidate: str) -> tuple[str, str]:
    """Provider and model of `[LABEL=]AGENT`."""
    agent = candidate.rpartition("=")[2]
    provider, _, model = agent.partition(":")
    if provider in ("oracle", "random", "human", *API_PROVIDERS):
        return provider, model
    return "hf", agent.removeprefix("hf:")


_EPISODES = 3
_EPISODE_TIMEOUT_S = 10.0
_CHARS_PER_TOKEN = 4


def probe_episodes(stage: Stage) -> EpisodeShape:
    """Play a few episodes in this process; an environment elsewhere gives the default."""
    options = stage.options
    env, task = str(options.get("env", "")), dict(_table(options.get("task")))
    if not env or "base_url" in options or is_remote(env):
        return EpisodeShape()
    if config := _table(options.get("dataset_config")):
        task["dataset_config"] = dict(config)
    try:
        with TemporaryDirectory() as folder:
            run = collect_sync(
                env,
                Path(folder) / "run",
                CollectConfig(
                    num_episodes=_EPISODES,
                    task=task,
                    workers=1,
                    max_attempts=1,
                    episode_timeout=_EPISODE_TIMEOUT_S,
                ),
            )
            complete = [each for each in episodes(run.folder) if each.error is None]
    except LudusError:  # The stage itself reports it.
        return EpisodeShape()
    if not complete:
        return EpisodeShape()
    return EpisodeShape(
        turns=fmean(max(1, each.turns) for each in complete),
        tokens=fmean(map(_count_chars, complete)) / _CHARS_PER_TOKEN,
    )


def _count_chars(episode: Episode) -> int:
    """Characters of the messages, and of the tools that the model is offered."""
    parts = episode.model_dump(mode="json", include={"messages", "tools"}, exclude_none=True)
    return len(dump_json(parts))


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
