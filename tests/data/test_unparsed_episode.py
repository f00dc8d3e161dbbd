from __future__ import annotations

import pytest

from ludus.data.episode import Episode, EpisodeFault, StopReason, Usage
from ludus.data.episode_reader import EpisodeHead, episode_from_line
from ludus.data.messages import Message


def an_episode(
    stop_reason: StopReason, *, error: EpisodeFault | None = None, usage: Usage | None = None
) -> Episode:
    return Episode(
        episode_id="0badcafe-000012",
        stop_reason=stop_reason,
        reward=None if error else 0.5,
        usage=usage or Usage(),
        environment="echo",
        group_id="g",
        messages=(Message(role="user", content="Hello."),),
        turns=3,
        error=error,
    )


@pytest.mark.parametrize(
    "episode",
    [
        an_episode(StopReason.DONE),
        an_episode(StopReason.MAX_TURNS, usage=Usage(prompt_tokens=3, cached_tokens=2, cost=0.1)),
        an_episode(StopReason.DONE, usage=Usage(reasoning_tokens=1, completion_tokens=1)),
        an_episode(
            StopReason.BROKEN,
            error=EpisodeFault(kind="SessionLost", where="environment", message="gone"),
        ),
    ],
)
def test_an_unparsed_episode_reads_like_the_episode(episode: Episode) -> None:
    unparsed = episode_from_line(episode.to_line())
    assert unparsed.to_line() == episode.to_line()
    assert EpisodeHead.from_episode(unparsed) == EpisodeHead.from_episode(episode)
    for name in (*Episode.model_fields, "broken", "cut_off", "format_compliant"):
        assert getattr(unparsed, name) == getattr(episode, name)
    changed = unparsed.model_copy(update={"usage": Usage(prompt_tokens=7)})
    assert changed.usage.prompt_tokens == 7 and changed.messages == episode.messages
