"""Episodes as OpenEnv's records, which OpenEnv and `datasets` can read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import load_dataset
from hypothesis import given, settings
from openenv.core.harness.collect import EpisodeRecord, RolloutSerializer

from curation.formats.conversations import TIMING, episodes
from curation.formats.openenv_records import collect_with_openenv
from ludus.curation.formats.base import UnreadableRecord, build_episode
from ludus.curation.formats.openenv import build_openenv_record, read_openenv
from ludus.data.episode import Episode, EpisodeFault
from ludus.data.episode_reader import episodes as recorded
from ludus.data.messages import Call, Function, Message
from ludus.rollout import CollectConfig
from ludus.rollout.collect import collect


def written(folder: Path, episodes: Iterable[Episode]) -> Path:
    file = folder / "results.jsonl"
    file.write_text(
        "".join(json.dumps(build_openenv_record(episode)) + "\n" for episode in episodes)
    )
    return file


def read(file: Path) -> list[Episode]:
    records = list(read_openenv(file))
    assert not [problem for problem in records if isinstance(problem, UnreadableRecord)], records
    return [one for one in records if isinstance(one, Episode)]


def odd() -> list[Episode]:
    """Episodes whose fields differ in everything that may differ."""
    tools = [
        {"type": "function", "function": {"name": "a", "parameters": {"default": 1}}},
        {"type": "function", "function": {"name": "b", "parameters": {"default": "x"}}},
    ]
    call = Call(id="1", function=Function(name="a", arguments='{"n": 1}'))
    bad = Call(id="2", function=Function(name="a", arguments='["n'))
    messages = Message(role="assistant", tool_calls=(call, bad))
    answers = [Message(role="tool", content=text, tool_call_id=text) for text in "12"]
    fault = EpisodeFault(kind="SessionLost", where="environment", message="gone")
    plain = build_episode(
        environment="e", messages=(messages, *answers), reward=1.0, episode_id="p"
    )
    broken = build_episode(environment="e", messages=(), reward=None, error=fault, episode_id="b")
    return [
        plain.model_copy(update={"tools": (tools[0],), "task": {"word": 1}, "seed": 3}),
        broken.model_copy(update={"tools": (tools[1],), "task": {"word": "owl"}}),
        plain.model_copy(update={"timing": TIMING, "rewards": {"x": 0.5}, "episode_id": "t"}),
    ]


@settings(deadline=None)
@given(episodes())
def test_episodes_round_trip(one: Episode) -> None:
    with TemporaryDirectory() as folder:
        assert read(written(Path(folder), [one])) == [one]


def test_records_of_openenv_round_trip(tmp_path: Path) -> None:
    original = collect_with_openenv(tmp_path / "a", [{"level": 1}, "hard", None]) / "results.jsonl"
    (tmp_path / "b").mkdir()
    copy = written(tmp_path / "b", read(original))
    before, after = (
        [json.loads(line) for line in file.read_text().splitlines()] for file in (original, copy)
    )
    for name in ("episode_id", "messages", "reward", "done", "task", "metrics"):
        assert [line[name] for line in after] == [line[name] for line in before]
    for old, new in zip(before, after, strict=True):
        assert [(call["tool_name"], call["arguments"]) for call in new["tool_trace"]] == [
            (call["tool_name"], call["arguments"]) for call in old["tool_trace"]
        ]
        assert [call["result"]["done"] for call in new["tool_trace"]] == [False, False, True]
        assert new["verify_metrics"] == {"final_reward": 1.0}
    assert read(copy) == read(original)


async def test_a_run_of_ours_comes_back_from_openenv_as_it_was(tmp_path: Path) -> None:
    await collect("wordle", tmp_path / "run", CollectConfig(num_episodes=2))
    played = list(recorded(tmp_path / "run" / "episodes.jsonl"))
    assert len(played) == 2 and played[0].tools and played[0].tool_calls
    assert read(written(tmp_path, played)) == played


def test_messages_begin_with_the_user_and_the_system_prompt_round_trips() -> None:
    system, asked = Message(role="system", content="s"), Message(role="user", content="Owl?")
    late = Message(role="system", content="Hurry.")
    messages = (system, system, asked, late, Message(role="assistant", content="A bird."))
    one = build_episode(environment="e", messages=messages, reward=1.0)
    assert [message["content"] for message in build_openenv_record(one)["messages"]] == [
        "Owl?",
        "Hurry.",
        "A bird.",
    ]
    with TemporaryDirectory() as folder:
        assert read(written(Path(folder), [one]))[0].messages == messages


def test_openenv_reads_the_records(tmp_path: Path) -> None:
    file = written(tmp_path, odd())
    records = [EpisodeRecord(**json.loads(line)) for line in file.read_text().splitlines()]
    assert [record.reward for record in records] == [1.0, None, 1.0]
    assert [entry["arguments"] for entry in records[0].tool_trace] == [{"n": 1}, {}]
    serializer = RolloutSerializer(tmp_path)
    assert serializer.collected_episode_ids() == {"p", "b", "t"}
    serializer.write_episode(records[0])
    assert read(file)[3] == read(file)[0]


def test_datasets_loads_the_records(tmp_path: Path) -> None:
    file = written(tmp_path, odd())
    loaded = load_dataset(
        "json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded["episode_id"][:] == ["p", "b", "t"]
    assert loaded["reward"][:] == [1.0, None, 1.0]
    assert loaded[0]["messages"][1]["content"] == "1"
