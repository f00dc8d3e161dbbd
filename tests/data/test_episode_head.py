"""Heads of episodes: the same by regular expression and by JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.sample_episodes import RUN, attempt
from ludus.data import episode_reader
from ludus.data.episode import Episode, StopReason, Usage, format_episode_id
from ludus.data.episode_reader import EpisodeHead

HERE = Path("episodes.jsonl")
COUNTS = st.integers(0, 10**20)
NUMBERS = st.none() | st.floats()
WORDS = st.text(st.characters(exclude_categories=["Cs"]))
IDS = WORDS | st.builds(format_episode_id, st.just(RUN), st.integers(0, 10**9))


@st.composite
def any_episode(draw: st.DrawFn) -> Episode:
    usage = Usage(
        prompt_tokens=draw(COUNTS),
        completion_tokens=draw(COUNTS),
        reasoning_tokens=draw(COUNTS),
        cost=draw(NUMBERS),
    )
    return attempt(
        0,
        draw(st.sampled_from(StopReason)),
        episode_id=draw(IDS),
        attempt=draw(COUNTS),
        reward=draw(NUMBERS),
        usage=usage,
        task=draw(st.dictionaries(WORDS, NUMBERS | WORDS, max_size=2)),
    )


def spaced(line: bytes) -> bytes:
    """The same line as another writer may write it: other order, other spaces."""
    fields = json.loads(line)
    return json.dumps(dict(reversed(fields.items())), ensure_ascii=False).encode() + b"\r\n"


@settings(deadline=None)
@given(any_episode())
@example(attempt(0, reward=1e-7))
@example(attempt(0, reward=-0.0))
@example(attempt(0, reward=1e22))
@example(attempt(0, reward=1.7e308))
@example(attempt(0, reward=math.nan))
@example(attempt(0, episode_id='c0ffee00-000001","attempt":7,"'))
@example(attempt(0, episode_id="c0ffee00-000001\n"))
def test_a_head_is_the_same_however_it_is_read(episode: Episode) -> None:
    line = episode.to_line()
    heads = [
        episode_reader.parse_head(line, HERE, 1),
        episode_reader.parse_head(spaced(line), HERE, 1),
    ]
    # As text, because -0.0 equals 0.0.
    assert [repr(head) for head in heads] == [repr(EpisodeHead.from_episode(episode))] * 2


@pytest.mark.parametrize("reward", [None, 0.0, -0.0, 1.0, 1e-7, -2.5, 1e22, 1 / 3])
def test_the_heads_of_our_own_lines_are_not_parsed_as_json(
    reward: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(episode_reader, "from_json")
    episode = attempt(1234567, reward=reward, usage=Usage(prompt_tokens=7, cost=1e-5))
    head = episode_reader.parse_head(episode.to_line(), HERE, 1)
    assert head == (f"{RUN}-1234567", 1234567, 1, "done", reward, 7, 0, 1e-5, "g")
