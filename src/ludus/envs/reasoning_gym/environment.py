"""The environment: one question, one answer, one score. The library runs in worker processes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from ludus.envs.reasoning_gym.client import ReasoningGymAction, ReasoningGymObservation
from ludus.envs.reasoning_gym.solutions import perfect_answer, write_working
from ludus.errors import did_you_mean
from ludus.protocol.types import State

DEFAULT_NAME = "chain_sum"
DEFAULT_SIZE = 1000


class ReasoningGym(Environment[ReasoningGymAction, ReasoningGymObservation, State]):
    """Answer a question of the reasoning_gym library, in one try.

    Every data set of the library is a variant: `reasoning_gym:sudoku`. The bare name is chain_sum.

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
        self._dataset: Dataset | None = None
        self._index = 0
        self._question: Question | None = None

    @classmethod
    def variants(cls) -> Sequence[str]:
        return dataset_names()

    @classmethod
    def variant_task(cls, variant: str) -> JsonObject:
        return {"dataset_name": variant, "size": 1}

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
        return self._open_question(dataset, index, dataset.question(index))

    async def reset_async(self, **task: Any) -> ReasoningGymObservation:
        """`reset` for an event loop, which is not blocked meanwhile."""
        dataset, index = self._select_question(**task)
        return self._open_question(dataset, index, await dataset.question_async(index))

    def step(self, action: ReasoningGymAction) -> ReasoningGymObservation:
        dataset, question = self._take_question()
        return _build_score_observation(question, dataset.score(question, action.answer))

    async def step_async(self, action: ReasoningGymAction) -> ReasoningGymObservation:
        dataset, question = self._take_question()
        score = await dataset.score_async(question, action.answer)
        return _build_score_observation(question, score)

    def _select_question(
        self,
        dataset_name: str | None = None,
        dataset_config: JsonObject | None = None,
        seed: int | None = None,
        size: int | None = None,
    ) -> tuple[Dataset, int]:
        """The first question of a new data set, or the next one of the present data set."""
        arguments = (dataset_name, dataset_config, seed, size)
        if self._dataset is not None and all(argument is None for argument in arguments):
            return self._dataset, (self._index + 1) % self._dataset.size
        dataset = Dataset.create(
            dataset_name or self._name,
            dataset_config or {},
            seed=random.SystemRandom().getrandbits(31) if seed is None else seed,
            size=DEFAULT_SIZE if size is None else size,
        )
        return dataset, 0

    def _open_question(
        self, dataset: Dataset, index: int, question: Question
    ) -> ReasoningGymObservation:
        self._dataset, self._index, self._question = dataset, index, question
        return ReasoningGymObservation(question=question.text, dataset_metadata=question.metadata)

    def _take_question(self) -> tuple[Dataset, Question]:
        if self._dataset is None or self._question is None:
            raise RuntimeError("No question is open. Call reset first.")
        question, self._question = self._question, None
        return self._dataset, question

    @property
    def state(self) -> State:
        if self._dataset is None:
            return State()
        return State.model_validate(
            {
                "dataset_name": self._dataset.name,
                "seed": self._dataset.seed,
                "size": self._dataset.size,
                "index": self._index,
            }
        )

    def oracle(self, *, working: bool = False) -> ToolCall | None:
        """An answer with score 1.0; with `working`, after the steps to it in some data sets."""
        if self._question is None:
            return None
        answer = perfect_answer(self._question.answer, self._question.metadata)
        text = write_working(answer, self._question.metadata) if working else ""
        return ToolCall(name="answer", arguments={"answer": answer}, text=text)


def _build_score_observation(question: Question, score: AnswerScore) -> ReasoningGymObservation:
    return ReasoningGymObservation(
        score=score.value,
        correct_answer=question.answer,
        note=score.note,
        reward=score.value,
        done=True,
    )


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


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with its answer and metadata."""

    text: str
    answer: str | None
    metadata: JsonObject
    entry: str
    """The library's pickled record of it, for the workers."""


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """The score of an answer."""

    value: float
    note: str | None = None
    """Why the evaluation was refused or aborted, if it was; the score is 0 then."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions by index; `Dataset.create` checks the arguments."""

    name: str
    config: Mapping[str, Any]
    seed: int
    size: int

    @classmethod
    def create(cls, name: str, config: Mapping[str, Any], *, seed: int, size: int) -> Dataset:
        if name not in dataset_names():
            hint = did_you_mean(name, dataset_names(), "See `ludus envs reasoning_gym`.")
            raise ValueError(f"reasoning_gym has no data set {name!r}. {hint}")
        if size < 1:
            raise ValueError(f"size must be positive, got {size}.")
        if {"seed", "size"} & config.keys():
            raise ValueError("seed and size are arguments of reset, beside dataset_config.")
        return cls(name, dict(config), seed, size)

    def question(self, index: int) -> Question:
        with self._explain_timeout():
            return self._parse_question(process_pool().ask(self._question_request(index)))

    async def question_async(self, index: int) -> Question:
        with self._explain_timeout():
            return self._parse_question(
                await process_pool().ask_async(self._question_request(index))
            )

    def score(self, question: Question, answer: str) -> AnswerScore:
        """Score an answer: 0 if its evaluation exceeds the limits."""
        try:
            return self._parse_score(process_pool().ask(self._score_request(question, answer)))
        except (WorkerTimeout, WorkerCrashed) as error:
            return _score_over_limits(error)

    async def score_async(self, question: Question, answer: str) -> AnswerScore:
        try:
            return self._parse_score(
                await process_pool().ask_async(self._score_request(question, answer))
            )
        except (WorkerTimeout, WorkerCrashed) as error:
            return _score_over_limits(error)

    def _question_request(self, index: int) -> bytes:
        return encode_request("question", limit=QUESTION_TIMEOUT_S, **self._identity(), index=index)

    def _score_request(self, question: Question, answer: str) -> bytes:
        # A model can write a lone surrogate, which cannot be encoded as UTF-8.
        encodable = answer.encode("utf-8", "replace").decode()
        arguments = {**self._identity(), "entry": question.entry, "answer": encodable}
        return encode_request(
            "score", limit=QUESTION_TIMEOUT_S, answer_limit=SCORE_TIMEOUT_S, **arguments
        )

    def _parse_question(self, reply: JsonObject) -> Question:
        if "refused" in reply:
            fields: list[str] = reply["fields"]
            known = f"Its fields: {', '.join(fields) or 'none'}."
            for field in self.config:
                if field not in fields:
                    hint = did_you_mean(field, fields, known)
                    raise ValueError(f"The config of {self.name} has no field {field!r}. {hint}")
            reason = reply["refused"].rstrip(".")
            raise ValueError(f"{self.name} does not take this dataset_config: {reason}. {known}")
        value = reply["value"]
        return Question(value["question"], value["answer"], value["metadata"], value["entry"])

    @staticmethod
    def _parse_score(reply: JsonObject) -> AnswerScore:
        if "refused" in reply:
            raise ValueError(reply["refused"])
        return AnswerScore(float(reply["value"]["score"]), reply["value"]["note"])

    @contextmanager
    def _explain_timeout(self) -> Iterator[None]:
        try:
            yield
        except WorkerTimeout:
            raise ValueError(
                f"{self.name} generated no question within {QUESTION_TIMEOUT_S:g} s. "
                "Configure easier ones with dataset_config."
            ) from None

    def _identity(self) -> JsonObject:
        return {"name": self.name, "config": self.config, "seed": self.seed, "size": self.size}


def _score_over_limits(error: WorkerTimeout | WorkerCrashed) -> AnswerScore:
    if isinstance(error, WorkerTimeout):
        return AnswerScore(0.0, f"The answer takes more than {SCORE_TIMEOUT_S:g} s to evaluate.")
    return AnswerScore(0.0, "Evaluating the answer crashes the library.")


@cache
def dataset_names() -> tuple[str, ...]:
    """The names of all data sets of the library, sorted."""
    return tuple(process_pool().ask(encode_request("names", limit=QUESTION_TIMEOUT_S))["value"])


@cache
def config_field_names(name: str) -> tuple[str, ...]:
    """The names of the fields of a data set's config, sorted."""
    return tuple(
        process_pool().ask(encode_request("fields", limit=QUESTION_TIMEOUT_S, name=name))["value"]
    )


def encode_request(method: str, *, limit: float, **arguments: Any) -> bytes:
    """Encode a request to a worker; `limit` is the CPU time that it may take, in seconds."""
    return to_json({"do": method, "limit": limit, "with": arguments})
