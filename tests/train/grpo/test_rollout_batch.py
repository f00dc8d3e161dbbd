"""The batch of a step."""

from __future__ import annotations

from ludus import Episode
from ludus.data.episode import StopReason
from ludus.train.grpo.rollout_batch import choose_batch_rows, to_rollout_row


def test_rows_without_signal_only_fill_up_to_the_size() -> None:
    assert choose_batch_rows([True, False, True, False], 2) == [0, 2]
    assert choose_batch_rows([True, False, False, True], 3) == [0, 1, 3]
    assert choose_batch_rows([False] * 4, 2) == [0, 1]
    assert choose_batch_rows([True] * 4, 4) == [0, 1, 2, 3]


def test_an_episode_without_sampled_tokens_is_masked() -> None:
    episode = Episode(episode_id="x", stop_reason=StopReason.BROKEN, environment="e", group_id="g")
    assert to_rollout_row(episode, 7) == ([7], [7], [0.0], [0])
