"""Other fields of a line, and rows of Ludus that are imported again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from curation.formats.message_lines import ASKED, SAID, one, read
from ludus.curation.formats.base import build_episode
from ludus.curation.formats.messages import read_messages
from ludus.curation.row_builders import sft_rows
from ludus.data.episode import Episode, EpisodeFault, StopReason
from ludus.data.episode_reader import episodes as recorded
from ludus.data.messages import Call, Function, Message
from ludus.rollout import CollectConfig
from ludus.rollout.collect import collect

OTHER = {"role": "user", "content": "What is 2 + 2?"}


def groups(folder: Path, *lines: dict[str, Any]) -> list[str]:
    return [item.group_id for item in read(folder, *lines) if isinstance(item, Episode)]


def returned(folder: Path, *rows: dict[str, Any]) -> list[Episode]:
    """Import rows as `ludus curate` writes them."""
    file = folder / "train.jsonl"
    file.write_bytes(b"".join(to_json(row) + b"\n" for row in rows))
    return [item for item in read_messages(file) if isinstance(item, Episode)]


def kept(episode: Episode) -> tuple[Any, ...]:
    """Return the fields of an episode that an SFT row has."""
    return (
        *(episode.environment, episode.group_id, episode.episode_id),
        *(episode.reward, episode.tools),
    )


def test_a_group_id_is_kept(tmp_path: Path) -> None:
    assert one(tmp_path, messages=[ASKED, SAID], group_id="g-7", task={"a": 1}).group_id == "g-7"
    assert one(tmp_path, messages=[ASKED, SAID], group_id=0).group_id == "0"
    unsaid = groups(tmp_path, {"messages": [ASKED]}, {"messages": [ASKED], "group_id": None})
    assert unsaid[0] == unsaid[1]


def test_ids_may_be_zero(tmp_path: Path) -> None:
    assert one(tmp_path, messages=[ASKED, SAID], id=0).episode_id == "0"


def test_a_task_name_alone_does_not_form_a_group(tmp_path: Path) -> None:
    first, again, second, elsewhere = groups(
        tmp_path,
        {"messages": [ASKED, SAID], "task": "gsm8k"},
        {"messages": [ASKED], "task": "gsm8k"},
        {"messages": [OTHER], "task": "gsm8k"},
        {"messages": [ASKED], "task": "math"},
    )
    assert first == again
    assert len({first, second, elsewhere}) == 3


def test_a_task_object_forms_a_group_whatever_the_prompt(tmp_path: Path) -> None:
    first, again, second = groups(
        tmp_path,
        {"messages": [ASKED], "task": {"word": "crane"}},
        {"messages": [OTHER], "task": {"word": "crane"}},
        {"messages": [ASKED], "task": {"word": "slate"}},
    )
    assert first == again != second


@pytest.mark.parametrize(
    ("fields", "agent"),
    [
        ({"model": "owl-1"}, {"model": "owl-1"}),
        ({"agent": "owl-1"}, {"model": "owl-1"}),
        ({"agent": {"provider": "p", "model": "m", "top_p": 1}, "model": None}, None),
        ({"agent": {"provider": "p", "model": "old", "top_p": 1}, "model": "m"}, None),
        ({"agent": None}, {}),
    ],
)
def test_model_and_agent(
    tmp_path: Path, fields: dict[str, Any], agent: dict[str, Any] | None
) -> None:
    fields_of_agent = one(tmp_path, messages=[ASKED, SAID], **fields).agent
    assert fields_of_agent == (
        {"provider": "p", "model": "m", "top_p": 1} if agent is None else agent
    )


def test_api_keys_in_agent_settings_are_dropped(tmp_path: Path) -> None:
    agent = {"model": "owl-1", "api_key": "secret", "extra_headers": {"authorization": "secret"}}
    assert one(tmp_path, messages=[ASKED], agent=agent).agent == {"model": "owl-1"}


def test_a_seed_is_kept(tmp_path: Path) -> None:
    assert one(tmp_path, messages=[ASKED], seed=7).seed == 7
    assert one(tmp_path, messages=[ASKED]).seed is None


@pytest.mark.parametrize(
    ("error", "kind", "where", "message"),
    [
        ("it fell over", "Error", "environment", "it fell over"),
        ({"kind": "ModelBusy", "where": "model", "message": "429"}, "ModelBusy", "model", "429"),
        ({"type": "rate_limit", "message": "429"}, "rate_limit", "environment", "429"),
        ({"code": 5}, "Error", "environment", '{"code": 5}'),
        (True, "Error", "environment", "true"),
    ],
)
def test_a_row_with_an_error_is_broken_and_unscored(
    tmp_path: Path, error: Any, kind: str, where: Any, message: str
) -> None:
    broken = one(tmp_path, messages=[ASKED], reward=0, error=error)
    assert (broken.stop_reason, broken.reward, broken.done) == (StopReason.BROKEN, None, False)
    assert broken.error == EpisodeFault(kind=kind, where=where, message=message)


@pytest.mark.parametrize("error", [None, "", {}, False])
def test_an_empty_error_is_no_fault(tmp_path: Path, error: Any) -> None:
    assert not one(tmp_path, messages=[ASKED, SAID], error=error).broken


def test_sft_rows_round_trip(tmp_path: Path) -> None:
    arguments = json.dumps({"word": "größe", "times": 2.5, "deep": {"a": [None, True]}})
    call = Call(id="c1", function=Function(name="look", arguments=arguments))
    messages = (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Look it up."),
        Message(role="assistant", reasoning_content="Hm.", tool_calls=(call,)),
        Message(role="tool", content="found", tool_call_id="c1", name="look"),
        Message(role="assistant", content="There."),
    )
    schema = {"type": "object", "properties": {"word": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    for reward in (0.1, None):
        one = build_episode(
            environment="words",
            messages=messages,
            tools=(tool,),
            reward=reward,
            task={"word": "größe"},
            episode_id="abc-000003",
        )
        (again,) = returned(tmp_path, *sft_rows(one))
        assert kept(again) == kept(one)
        assert again.messages == _spelled(one.messages)


async def test_a_run_comes_back_from_its_rows_for_sft(tmp_path: Path) -> None:
    await collect("wordle", tmp_path / "run", CollectConfig(num_episodes=3))
    played = list(recorded(tmp_path / "run" / "episodes.jsonl"))
    assert played[0].tools and played[0].tool_calls
    again = returned(tmp_path, *(row for one in played for row in sft_rows(one)))
    assert [kept(one) for one in again] == [kept(one) for one in played]
    assert [one.messages for one in again] == [_spelled(one.messages) for one in played]


def _spelled(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Normalize the spacing of arguments, which are objects in rows."""

    def spelled(call: Call) -> Call:
        words = json.dumps(json.loads(call.function.arguments), ensure_ascii=False)
        return Call(id=call.id, function=Function(name=call.function.name, arguments=words))

    return tuple(
        message.model_copy(update={"tool_calls": tuple(map(spelled, message.tool_calls))})
        if message.tool_calls
        else message
        for message in messages
    )
