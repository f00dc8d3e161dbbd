"""The environment: one question, one answer, one score. The library runs in worker processes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from pydantic_core import to_json

from ludus.data.tool_schema import JsonObject, ToolCall
from ludus.environment.base import Environment
from ludus.environment.worker_processes import (
    WorkerCrashed,
    WorkerPool,
    WorkerProcess,
    WorkerTimeout,
    pool_per_process,
)
from ludus.envs.reasoning_gym import ReasoningGymAction, ReasoningGymObservation
from ludus.errors import did_you_mean
from ludus.protocol.types import State

DEFAULT_NAME = "chain_sum"
DEFAULT_SIZE = 1000
WITHOUT_ORACLE = frozenset(("boxnet", "rush_hour"))
"""Data sets that do not come with answers."""
MAX_WORKERS = min(8, os.cpu_count() or 1)
QUESTION_TIMEOUT_S = 120.0
SCORE_TIMEOUT_S = 2.0
"""CPU time for generating a question, and for scoring an answer, which takes milliseconds."""

process_pool = pool_per_process(
    partial(
        WorkerPool[WorkerProcess],
        partial(
            WorkerProcess,
            "ludus.envs.reasoning_gym.worker",
            PYTHONHASHSEED="0",
            PYTHONUTF8="1",
            OMP_NUM_THREADS="1",
            OPENBLAS_NUM_THREADS="1",
        ),
        max_workers=MAX_WORKERS,
    )
)
"""Returns the pool of this process."""


class ReasoningGym(Environment[ReasoningGymAction, ReasoningGymObservation, State]):
    """Answer a question of the reasoning_gym library, in one try.

    The data sets of the library are variants: `reasoning_gym:sudoku`. The bare name is chain_sum.

    Action:
        answer: the final answer, as text.
    Observation:
        After a reset `question` and `dataset_metadata`; after the step `score` and
        `correct_answer`.
    Reward:
        The score: 1.0 for a right answer, less for one that is partly right or wrong. An answer
        that is a program, or too large to evaluate, is worth 0.0 and `note` says why.
    Episode end:
        With the first answer.
    Task arguments:
        dataset_name: the data set to draw from (the variant).
        dataset_config: its difficulty and the like, by the names of the library's own config.
        seed: which questions the data set holds (random).
        size: how many questions it holds (1000).
        With any of them given the data set is made anew and its first question asked; a reset
        without them asks the next one, and after the last the first.
    """

    blocking = True

    def __init__(self, variant: str | None = None) -> None:
        self._name = variant or DEFAULT_NAME
        self._dataset: JsonObject | None = None
        """Its name, config, seed and size."""
        self._index = 0
        self._question: JsonObject | None = None

    @classmethod
    def variants(cls) -> Sequence[str]:
        return dataset_names()

    @classmethod
    def variant_task(cls, variant: str) -> JsonObject:
        return {"dataset_name": variant, "size": 1}

    @classmethod
    def oracle_variants(cls) -> Sequence[str]:
        return [name for name in dataset_names() if name not in WITHOUT_ORACLE]

    @classmethod
    def argument_fields(cls, variant: str | None) -> Mapping[str, Sequence[str]]:
        return {"dataset_config": config_field_names(variant or DEFAULT_NAME)}

    def reset(
        self,
        *,
        dataset_name: str | None = None,
        dataset_config: JsonObject | None = None,
        seed: int | None = None,
        size: int | None = None,
    ) -> ReasoningGymObservation:
        dataset, index = self._select_question(dataset_name, dataset_config, seed, size)
        with _explain_timeout(dataset):
            reply = process_pool().ask(_question_request(dataset, index))
        return self._open_question(dataset, index, reply)

    async def reset_async(self, **task: Any) -> ReasoningGymObservation:
        """`reset` for an event loop, which is not blocked meanwhile."""
        dataset, index = self._select_question(**task)
        with _explain_timeout(dataset):
            reply = await process_pool().ask_async(_question_request(dataset, index))
        return self._open_question(dataset, index, reply)

    def step(self, action: ReasoningGymAction) -> ReasoningGymObservation:
        question, request = self._close_question(action.answer)
        try:
            reply = process_pool().ask(request)
        except (WorkerTimeout, WorkerCrashed) as error:
            return _score_observation(question, 0.0, _describe_limit(error))
        return _score_observation(question, **reply["value"])

    async def step_async(self, action: ReasoningGymAction) -> ReasoningGymObservation:
        question, request = self._close_question(action.answer)
        try:
            reply = await process_pool().ask_async(request)
        except (WorkerTimeout, WorkerCrashed) as error:
            return _score_observation(question, 0.0, _describe_limit(error))
        return _score_observation(question, **reply["value"])

    def _select_question(
        self,
        dataset_name: str | None = None,
        dataset_config: JsonObject | None = None,
        seed: int | None = None,
        size: int | None = None,
    ) -> tuple[JsonObject, int]:
        """The first question of a new data set, or the next one of the present data set."""
        arguments = (dataset_name, dataset_config, seed, size)
        if self._dataset is not None and all(argument is None for argument in arguments):
            return self._dataset, (self._index + 1) % self._dataset["size"]
        name, config = dataset_name or self._name, dataset_config or {}
        if name not in dataset_names():
            hint = did_you_mean(name, dataset_names(), "See `ludus envs reasoning_gym`.")
            raise ValueError(f"reasoning_gym has no data set {name!r}. {hint}")
        if size is not None and size < 1:
            raise ValueError(f"size must be positive, got {size}.")
        if {"seed", "size"} & config.keys():
            raise ValueError("seed and size are arguments of reset, beside dataset_config.")
        dataset = {
            "name": name,
            "config": config,
            "seed": random.SystemRandom().getrandbits(31) if seed is None else seed,
            "size": size or DEFAULT_SIZE,
        }
        return dataset, 0

    def _open_question(
        self, dataset: JsonObject, index: int, reply: JsonObject
    ) -> ReasoningGymObservation:
        if "refused" in reply:
            name, fields = dataset["name"], reply["fields"]
            known = f"Its fields: {', '.join(fields) or 'none'}."
            for field in dataset["config"]:
                if field not in fields:
                    hint = did_you_mean(field, fields, known)
                    raise ValueError(f"The config of {name} has no field {field!r}. {hint}")
            reason = reply["refused"].rstrip(".")
            raise ValueError(f"{name} does not take this dataset_config: {reason}. {known}")
        self._dataset, self._index, self._question = dataset, index, reply["value"]
        return ReasoningGymObservation(
            question=self._question["question"], dataset_metadata=self._question["metadata"]
        )

    def _close_question(self, answer: str) -> tuple[JsonObject, bytes]:
        """The open question, and the request to score an answer to it."""
        if self._dataset is None or self._question is None:
            raise RuntimeError("No question is open. Call reset first.")
        question, self._question = self._question, None
        arguments = {
            **self._dataset,
            "entry": question["entry"],
            # A model can write a lone surrogate, which cannot be encoded as UTF-8.
            "answer": answer.encode("utf-8", "replace").decode(),
            "answer_limit": SCORE_TIMEOUT_S,
        }
        return question, encode_request("score", arguments)

    @property
    def state(self) -> State:
        if self._dataset is None:
            return State()
        return State.model_validate(
            {
                "dataset_name": self._dataset["name"],
                "seed": self._dataset["seed"],
                "size": self._dataset["size"],
                "index": self._index,
            }
        )

    def oracle(self) -> ToolCall | None:
        """An answer with score 1.0."""
        if self._question is None:
            return None
        metadata, answer = self._question["metadata"], self._question["answer"]
        source = metadata["source_dataset"]
        if source in WITHOUT_ORACLE:
            raise NotImplementedError(f"There is no oracle for {source}.")
        if source == "graph_color":
            answer = json.dumps(metadata["possible_answer"])
        elif source == "rubiks_cube":
            answer = metadata["example_correct_answer"]
        return ToolCall(name="answer", arguments={"answer": answer})


def _score_observation(
    question: JsonObject, score: float, note: str | None
) -> ReasoningGymObservation:
    return ReasoningGymObservation(
        score=score, correct_answer=question["answer"], note=note, reward=score, done=True
    )


def _describe_limit(error: WorkerTimeout | WorkerCrashed) -> str:
    if isinstance(error, WorkerTimeout):
        return f"The answer takes more than {SCORE_TIMEOUT_S:g} s to evaluate."
    return "Evaluating the answer crashes the library."


@contextmanager
def _explain_timeout(dataset: JsonObject) -> Iterator[None]:
    try:
        yield
    except WorkerTimeout:
        raise ValueError(
            f"{dataset['name']} generated no question within {QUESTION_TIMEOUT_S:g} s. "
            "Configure easier ones with dataset_config."
        ) from None


@cache
def dataset_names() -> tuple[str, ...]:
    """The names of the data sets that are offered, sorted."""
    return tuple(process_pool().ask(encode_request("names", {}))["value"])


@cache
def config_field_names(name: str) -> tuple[str, ...]:
    """The names of the fields of a data set's config, sorted."""
    return tuple(process_pool().ask(encode_request("fields", {"name": name}))["value"])


def _question_request(dataset: JsonObject, index: int) -> bytes:
    return encode_request("question", {**dataset, "index": index})


def encode_request(method: str, arguments: JsonObject) -> bytes:
    """Encode a request to a worker, with the CPU time that it may take, in seconds."""
    return to_json({"do": method, "limit": QUESTION_TIMEOUT_S, "with": arguments})
