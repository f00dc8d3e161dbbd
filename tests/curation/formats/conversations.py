"""Any conversation that an episode can hold, in the one form in which importers leave it.

That form has no thoughts that are empty, no lists of parts where a string says the same, and ids
on all calls and answers.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from ludus.curation.formats.base import build_episode
from ludus.data.episode import Episode, EpisodeFault, StopReason, Timing, Usage
from ludus.data.messages import Call, Function, ImagePart, ImageUrl, Message, Text
from ludus.data.tool_schema import ToolSpec

_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_some = _words.filter(bool)
_texts = st.builds(Text, text=_words)
_images = st.sampled_from(["data:image/png;base64,AA==", "https://example.org/owl.png"]).map(
    lambda url: ImagePart(image_url=ImageUrl(url=url))
)
_parts = st.lists(_texts | _images, min_size=1, max_size=3).map(tuple)
_contents = _words | _parts.filter(lambda parts: len(parts) > 1 or isinstance(parts[0], ImagePart))
_arguments = _words | st.dictionaries(_words, _words, max_size=2).map(json.dumps)
_calls = st.builds(
    Call,
    id=_some,
    function=st.builds(Function, name=_some, arguments=_arguments),
)
_maybe = st.none() | _some
_messages = st.one_of(
    st.builds(Message, role=st.sampled_from(["system", "user"]), content=_contents, name=_maybe),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=_contents,
        reasoning_content=_maybe,
        tool_calls=st.none() | st.lists(_calls, min_size=1, max_size=3).map(tuple),
        name=_maybe,
    ),
    st.builds(Message, role=st.just("tool"), content=_contents, tool_call_id=_some, name=_maybe),
)
_schemas = st.sampled_from(
    [{"type": "object", "properties": {}}, {"type": "object", "required": ["a"]}]
)
_tools = st.builds(ToolSpec, name=_some, description=_words, input_schema=_schemas).map(
    lambda spec: spec.to_openai()
)
_numbers = st.floats(-2, 2)
_fields = st.sampled_from(["word", "expected_answer", "verifier_metadata", "reward", "response"])
_plain: st.SearchStrategy[Any] = st.none() | _words | st.integers(0, 9) | st.lists(_words)


@st.composite
def episodes(draw: st.DrawFn) -> Episode:
    """Scored, unscored or broken."""
    episode = build_episode(
        environment=draw(_some),
        messages=tuple(draw(st.lists(_messages, max_size=6))),
        tools=tuple(draw(st.lists(_tools, max_size=2))),
        reward=draw(st.none() | _numbers),
        task=draw(st.dictionaries(_fields, _plain)),
        episode_id=draw(_words),
        seed=draw(st.none() | st.integers(0, 9)),
        agent=draw(st.dictionaries(st.sampled_from(["model", "provider"]), _words)),
        rewards=draw(st.dictionaries(_words, _numbers, max_size=2)),
        done=draw(st.booleans()),
        stop_reason=draw(st.sampled_from([None, *StopReason])),
        error=draw(st.none() | st.just(EpisodeFault(kind="Lost", where="model", message="gone"))),
        usage=Usage(prompt_tokens=draw(st.integers(0, 9)), completion_tokens=3, cost=0.5),
    )
    reward = None if episode.broken else episode.reward
    timing = draw(st.none() | st.just(TIMING))
    return episode.model_copy(update={"reward": reward, "timing": timing})


TIMING = Timing.model_validate(
    {"started_at": "2026-01-01T10:00:00Z", "ended_at": "2026-01-01T10:00:05.25Z", "model_s": 4.5}
)
