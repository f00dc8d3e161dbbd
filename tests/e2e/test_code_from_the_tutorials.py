"""What users of OpenEnv's tutorials have in their scripts works here, import and address aside."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest
from world import Served, serving

from ludus.envs.echo import EchoAction, EchoEnv
from ludus.envs.reasoning_gym import ReasoningGymAction, ReasoningGymEnv

SMALL_SUMS = {"min_terms": 2, "max_terms": 3, "min_digits": 2, "max_digits": 2}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving("reasoning_gym") as running:
        yield running


class TrainEnv:
    """The wrapper that a GRPO script gives to its trainer: sync, one question an episode."""

    url = ""

    def __init__(self) -> None:
        self.client = ReasoningGymEnv(base_url=self.url).sync()
        self._seed = random.Random(5).randint(0, 2**31 - 1)
        self._begun = False
        self.reward = 0.0

    def reset(self, **row: object) -> str:
        if self._begun:
            result = self.client.reset()
        else:
            result = self.client.reset(
                dataset_name="chain_sum", dataset_config=SMALL_SUMS, seed=self._seed, size=1000
            )
            self._begun = True
        assert result.observation.question is not None
        return result.observation.question

    def answer(self, answer: str) -> str:
        result = self.client.step(ReasoningGymAction(answer=str(answer)))
        self.reward = float(result.observation.score or 0.0)
        return f"score={self.reward} correct={result.observation.correct_answer}"


def total(question: str) -> int:
    """What a model would have to work out."""
    found = re.search(r"(-?\d+(?: [+-] -?\d+)+)", question)
    assert found is not None, question
    return sum(int(term) for term in re.findall(r"[+-]?\d+", found.group().replace(" ", "")))


def test_a_training_wrapper_gets_a_new_question_with_each_reset(served: Served) -> None:
    TrainEnv.url = served.url
    first, second = TrainEnv(), TrainEnv()
    questions = [first.reset() for _ in range(4)]
    assert len(set(questions)) == 4
    assert second.reset() == questions[0], "the same data set begins with the same question"
    told = first.answer(str(total(questions[-1])))
    assert first.reward == 1.0 and told.startswith("score=1.0 correct=")
    second.answer("0")
    assert second.reward < 1.0
    for env in (first, second):
        env.client.close()


async def test_an_evaluation_loop_walks_through_its_questions(served: Served) -> None:
    env = ReasoningGymEnv(base_url=served.url)
    result = await env.reset(dataset_name="chain_sum", dataset_config=SMALL_SUMS, seed=999, size=10)
    scores = []
    for index in range(10):
        if index > 0:
            result = await env.reset()
        question = result.observation.question
        assert question is not None
        answered = await env.step(ReasoningGymAction(answer=str(total(question))))
        assert answered.done and answered.reward == answered.observation.score
        scores.append(float(answered.observation.score or 0.0))
    await env.close()
    assert scores == [1.0] * 10


def test_an_echo_client_is_rewarded_for_each_message_after_one_reset() -> None:
    with serving("echo") as served, EchoEnv(base_url=served.url).sync() as client:
        client.reset()
        rewards = [client.step(EchoAction(message=text)).reward for text in ("hello", "hi")]
        assert rewards == [pytest.approx(0.5), pytest.approx(0.2)]
