"""Reading the needed fields of `episodes.jsonl`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose.runs import Sample, episode
from ludus.data.episode import EpisodeFault
from ludus.data.interval_estimates import REWARD_TOLERANCE
from ludus.data.messages import Message
from ludus.diagnose import read_episode_stats
from ludus.diagnose.episode_stats import (
    EpisodeStats,
    TokenLimits,
    parse_episode_stats,
    zero_variance_share,
)

ONE = EpisodeStats("1a2b3c4d-000007", 3, "wordle", "00ff00ff00ff00ff", "done", 0.5, 7)


def write_episodes(folder: Path, *attempts: EpisodeStats, rest: bytes = b"") -> Path:
    file = folder / "episodes.jsonl"
    file.write_bytes(b"".join(episode(one).to_line() for one in attempts) + rest)
    return file


def test_episode_round_trip() -> None:
    assert parse_episode_stats(episode(ONE).to_line()) == ONE


@pytest.mark.parametrize(
    "changes",
    [
        {"task": {"messages": [{"role": "user"}]}},
        {"task": {"text": ',"messages":[ "agent":{"step":9}'}},
        {"environment": 'a "quoted" \\ spéc'},
        {"messages": ()},
    ],
    ids=["messages in the task", "words of JSON", "an odd name", "no messages"],
)
def test_task_content_does_not_confuse_the_parser(changes: dict[str, object]) -> None:
    parsed = parse_episode_stats(episode(ONE, **changes).to_line())
    assert parsed == ONE._replace(environment=str(changes.get("environment", "wordle")))


def test_tool_schema_with_rewards_does_not_confuse_the_parser() -> None:
    schema = {"properties": {"a": 1, "rewards": {"wordle": 9.0}, "tokens": []}}
    tools = ({"type": "function", "function": {"name": "guess", "parameters": schema}},)
    words = Message(role="user", content='{"a":1,"rewards":{"wordle":9.0},"tokens":null}')
    parts = {"wordle": 0.2}
    line = episode(ONE, tools=tools, messages=(words,), rewards=parts).to_line()
    assert parse_episode_stats(line) == ONE


def test_last_broken_episode_has_its_fault(tmp_path: Path) -> None:
    fault = EpisodeFault(kind="RequestRefused", where="model", message='No "rewards":{} are left.')
    broken = ONE._replace(stop_reason="broken", reward=None, fault=fault)
    assert read_episode_stats(write_episodes(tmp_path, ONE, broken)).last_broken == broken


@pytest.mark.parametrize(("budget", "reached"), [(8, "context"), (7, "episode"), (None, "episode")])
def test_cut_off_below_the_token_limit_means_a_full_context(
    budget: int | None, reached: str, tmp_path: Path
) -> None:
    cut = ONE._replace(episode_id="1a2b3c4d-000001", stop_reason="max_tokens")
    episodes = read_episode_stats(write_episodes(tmp_path, ONE, cut), limits=TokenLimits(budget))
    assert episodes.cut_off_by == {reached: 1}


def test_reply_limit_is_told_from_the_episode_limit(tmp_path: Path) -> None:
    cut = ONE._replace(episode_id="1a2b3c4d-000001", stop_reason="max_tokens")
    episodes = read_episode_stats(
        write_episodes(tmp_path, ONE, cut), limits=TokenLimits(100, cut.sampled_tokens)
    )
    assert episodes.cut_off_by == {"reply": 1}


def test_fields_may_have_another_order() -> None:
    fields = json.loads(episode(ONE).to_line())
    turned = json.dumps(dict(reversed(fields.items())), indent=None) + "\n"
    assert parse_episode_stats(turned.encode()) == ONE


@pytest.mark.parametrize(
    "line",
    [
        episode(ONE).to_line()[:-40],
        b"[1, 2]\n",
        b"{}\n",
        b"\x00\x00\n",
        episode(ONE, agent={"provider": "hf"}).to_line(),
        episode(ONE, agent={"step": "3"}).to_line(),
    ],
    ids=["torn", "a list", "empty", "zeros", "no step", "no number"],
)
def test_invalid_line_is_none(line: bytes) -> None:
    assert parse_episode_stats(line) is None


def test_truncated_last_line_is_skipped(tmp_path: Path) -> None:
    torn = episode(ONE).to_line()[:-10]
    episodes = read_episode_stats(
        write_episodes(tmp_path, ONE._replace(episode_id="1a2b3c4d-000001"), rest=torn)
    )
    assert len(episodes.groups) == 1


def test_missing_file_has_no_episodes(tmp_path: Path) -> None:
    assert read_episode_stats(tmp_path / "episodes.jsonl").groups == ()


def test_episodes_are_grouped_without_faults(tmp_path: Path) -> None:
    names = [f"1a2b3c4d-{number:06d}" for number in range(4)]
    one, two, three = (ONE._replace(episode_id=name) for name in names[:3])
    broken = ONE._replace(episode_id=names[3], stop_reason="broken", reward=None)
    episodes = read_episode_stats(
        write_episodes(tmp_path, one, two, three._replace(task="other"), broken)
    )
    assert [group.rewards for group in episodes.groups] == [(0.5, 0.5), (0.5,)]
    assert episodes.last_broken == broken


def test_replayed_episode_counts_once(tmp_path: Path) -> None:
    episodes = read_episode_stats(write_episodes(tmp_path, ONE, ONE._replace(reward=1.0)))
    assert [group.rewards for group in episodes.groups] == [(1.0,)]


def test_zero_variance_tolerates_rounding_errors(tmp_path: Path) -> None:
    rewards = [(0.3, 0.1 + 0.2 + REWARD_TOLERANCE / 2), (0.3, 0.3 + 2 * REWARD_TOLERANCE)]
    members = [
        ONE._replace(episode_id=f"{task}.{place}", task=str(task), reward=reward)
        for task, group in enumerate(rewards)
        for place, reward in enumerate(group)
    ]
    episodes = read_episode_stats(write_episodes(tmp_path, *members))
    assert [group.has_zero_variance for group in episodes.groups] == [True, False]
    assert zero_variance_share(episodes.groups) == 0.5 and zero_variance_share([]) is None


def test_messages_and_tokens_are_not_parsed() -> None:
    line = episode(ONE, rewards={"wordle": 0.5}).to_line()
    head, messages, rest = line.partition(b',"messages":[')
    body, rewards, tail = rest.rpartition(b',"rewards":{')
    middle, tokens, _ = tail.rpartition(b',"tokens":')
    assert messages and rewards and tokens and body
    broken = head + messages + b"not JSON" + rewards + middle + tokens + b"not JSON either}\n"
    assert parse_episode_stats(broken) == ONE


def test_run_round_trip(tmp_path: Path) -> None:
    _, attempts = Sample(steps=3, faults=0.1).draw()
    _, expected = Sample(steps=3, faults=0.1).read()
    read = read_episode_stats(write_episodes(tmp_path, *attempts))
    assert replace(read, mean_reward=None) == expected
    assert read.mean_reward is not None
    assert read.mean_reward.n == sum(len(group.rewards) for group in read.groups)
