"""Questions and scores of the reasoning_gym library, which runs in worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ludus.envs.reasoning_gym.async_worker_pool import ask_async
from ludus.envs.reasoning_gym.worker_pool import (
    Reply,
    WorkerCrashed,
    WorkerTimeout,
    ask,
    encode_request,
)
from ludus.errors import did_you_mean

QUESTION_TIMEOUT_S = 120.0
SCORE_TIMEOUT_S = 2.0
"""CPU time for generating a question, and for scoring an answer, which takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with its answer and metadata."""

    text: str
    answer: str | None
    metadata: dict[str, Any]
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
            return self._parse_question(ask(self._question_request(index)))

    async def question_async(self, index: int) -> Question:
        with self._explain_timeout():
            return self._parse_question(await ask_async(self._question_request(index)))

    def score(self, question: Question, answer: str) -> AnswerScore:
        """Score an answer: 0 if its evaluation exceeds the limits."""
        try:
            return self._parse_score(ask(self._score_request(question, answer)))
        except (WorkerTimeout, WorkerCrashed) as error:
            return _score_over_limits(error)

    async def score_async(self, question: Question, answer: str) -> AnswerScore:
        try:
            return self._parse_score(await ask_async(self._score_request(question, answer)))
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

    def _parse_question(self, reply: Reply) -> Question:
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
    def _parse_score(reply: Reply) -> AnswerScore:
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

    def _identity(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config, "seed": self.seed, "size": self.size}


def _score_over_limits(error: WorkerTimeout | WorkerCrashed) -> AnswerScore:
    if isinstance(error, WorkerTimeout):
        return AnswerScore(0.0, f"The answer takes more than {SCORE_TIMEOUT_S:g} s to evaluate.")
    return AnswerScore(0.0, "Evaluating the answer crashes the library.")


@cache
def dataset_names() -> tuple[str, ...]:
    """The names of all data sets of the library, sorted."""
    return tuple(ask(encode_request("names", limit=QUESTION_TIMEOUT_S))["value"])


@cache
def config_field_names(name: str) -> tuple[str, ...]:
    """The names of the fields of a data set's config, sorted."""
    return tuple(ask(encode_request("fields", limit=QUESTION_TIMEOUT_S, name=name))["value"])
