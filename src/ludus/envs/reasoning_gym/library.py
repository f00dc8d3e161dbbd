"""The reasoning_gym library as questions and scores. Where it runs is `children.py`'s business."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ludus.envs.reasoning_gym.children import Crashed, Reply, TookTooLong, ask, request_to
from ludus.envs.reasoning_gym.crew import ask_later
from ludus.errors import did_you_mean

QUESTION_LIMIT = 120.0
SCORE_LIMIT = 2.0
"""Seconds of work for a question, and for an answer. Right answers take milliseconds."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what is known about it."""

    text: str
    answer: str | None
    metadata: dict[str, Any]
    entry: str
    """The library's own record of it, which only the children can open."""


@dataclass(frozen=True, slots=True)
class Score:
    """What an answer is worth."""

    value: float
    note: str | None = None
    """Why it was not evaluated to its end, if so: that is the answer's doing, and worth nothing."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Questions by index. Make one with `DataSet.of`, which checks the name and the size."""

    name: str
    config: Mapping[str, Any]
    seed: int
    size: int

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any], *, seed: int, size: int) -> DataSet:
        if name not in names():
            hint = did_you_mean(name, names(), "See `ludus envs reasoning_gym`.")
            raise ValueError(f"reasoning_gym has no data set {name!r}. {hint}")
        if size < 1:
            raise ValueError(f"A data set holds at least one question, and not {size}.")
        if {"seed", "size"} & config.keys():
            raise ValueError("seed and size are arguments of reset, beside dataset_config.")
        return cls(name, dict(config), seed, size)

    def question(self, index: int) -> Question:
        with self._patiently():
            return self._read(ask(self._wanted(index)))

    async def question_later(self, index: int) -> Question:
        with self._patiently():
            return self._read(await ask_later(self._wanted(index)))

    def score(self, question: Question, answer: str) -> Score:
        """What the answer is worth: nothing, if its evaluation goes over the limits."""
        try:
            return _read_score(ask(self._given(question, answer)))
        except (TookTooLong, Crashed) as error:
            return _over_the_limits(error)

    async def score_later(self, question: Question, answer: str) -> Score:
        try:
            return _read_score(await ask_later(self._given(question, answer)))
        except (TookTooLong, Crashed) as error:
            return _over_the_limits(error)

    def _wanted(self, index: int) -> bytes:
        return request_to("question", limit=QUESTION_LIMIT, **self._identity(), index=index)

    def _given(self, question: Question, answer: str) -> bytes:
        # Models can write half a character, which no pipe can carry.
        whole = answer.encode("utf-8", "replace").decode()
        sent = {**self._identity(), "entry": question.entry, "answer": whole}
        return request_to("score", limit=QUESTION_LIMIT, answer_limit=SCORE_LIMIT, **sent)

    def _read(self, reply: Reply) -> Question:
        if "refused" in reply:
            raise ValueError(self._refusal(reply["refused"], reply["fields"]))
        made = reply["value"]
        return Question(made["question"], made["answer"], made["metadata"], made["entry"])

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        try:
            yield
        except TookTooLong:
            raise ValueError(
                f"{self.name} made no question in {QUESTION_LIMIT:g} s. "
                "Ask for easier ones with dataset_config."
            ) from None

    def _identity(self) -> dict[str, Any]:
        return {"name": self.name, "config": self.config, "seed": self.seed, "size": self.size}

    def _refusal(self, why: str, fields: list[str]) -> str:
        known = f"Its fields: {', '.join(fields) or 'none'}."
        for field in self.config:
            if field not in fields:
                hint = did_you_mean(field, fields, known)
                return f"The config of {self.name} has no field {field!r}. {hint}"
        return f"{self.name} does not take this dataset_config: {why.rstrip('.')}. {known}"


def _read_score(reply: Reply) -> Score:
    if "refused" in reply:
        raise ValueError(reply["refused"])
    return Score(float(reply["value"]["score"]), reply["value"]["note"])


def _over_the_limits(error: TookTooLong | Crashed) -> Score:
    if isinstance(error, TookTooLong):
        return Score(0.0, f"The answer takes more than {SCORE_LIMIT:g} s to evaluate.")
    return Score(0.0, "Evaluating the answer crashes the library.")


@cache
def names() -> tuple[str, ...]:
    """Every data set that the library has, sorted."""
    return tuple(ask(request_to("names", limit=QUESTION_LIMIT))["value"])
