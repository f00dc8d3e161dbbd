"""The environment: one question, one answer, one score."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.data.tool_schema import ToolCall
from ludus.environment.base import Environment
from ludus.envs.reasoning_gym.dataset import (
    AnswerScore,
    Dataset,
    Question,
    config_field_names,
    dataset_names,
)
from ludus.envs.reasoning_gym.models import ReasoningGymAction, ReasoningGymObservation
from ludus.envs.reasoning_gym.solutions import perfect_answer
from ludus.envs.reasoning_gym.workings import write_working
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
    def variant_task(cls, variant: str) -> dict[str, Any]:
        return {"dataset_name": variant, "size": 1}

    @classmethod
    def argument_fields(cls, variant: str | None) -> Mapping[str, Sequence[str]]:
        return {"dataset_config": config_field_names(variant or DEFAULT_NAME)}

    def reset(
        self,
        *,
        dataset_name: str | None = None,
        dataset_config: dict[str, Any] | None = None,
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
        dataset_config: dict[str, Any] | None = None,
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
