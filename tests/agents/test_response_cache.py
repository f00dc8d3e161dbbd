"""Replies that are kept on disk."""

import os
from pathlib import Path

import pytest
from chat_stub import chat_stub

from agents.asking import SECRET, ask, chat, openai, user
from ludus.agents.prices import PriceTable, Rate
from ludus.agents.response_cache import ResponseCache, request_key
from ludus.errors import ConfigError, ModelBusy


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_the_same_request_is_answered_from_disk_at_no_cost(tmp_path: Path) -> None:
    prices = PriceTable({"m": Rate(input=1, output=1)})
    with chat_stub() as stub:
        async with openai(stub, cache=tmp_path / "kept", prices=prices) as agent:
            first = await ask(agent)
        async with openai(stub, cache=tmp_path / "kept", prices=prices) as agent:
            again = await ask(agent)
        assert len(stub.bodies) == 1
    assert again.message == first.message
    assert first.usage.cost is not None and first.usage.cost > 0
    assert again.usage == first.usage.model_copy(update={"cost": 0.0})


async def test_a_kept_reply_takes_no_slot(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai(stub, cache=tmp_path, concurrency=1) as agent:
            first = await ask(agent)
            async with agent.client.throttle.slot():
                assert (await ask(agent)).message == first.message


async def test_members_of_a_group_and_other_requests_get_replies_of_their_own(
    tmp_path: Path,
) -> None:
    with chat_stub() as stub:
        async with openai(stub, cache=tmp_path) as agent:
            for _ in range(2):
                await ask(agent, member=0)
                await ask(agent, member=1)
                await ask(agent, user("Other"))
                await ask(agent, max_tokens=5)
        assert len(stub.bodies) == 4
    assert len(files(tmp_path)) == 4


async def test_a_corrupt_file_counts_as_absent_and_is_replaced(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai(stub, cache=tmp_path) as agent:
            first = await ask(agent)
            (path,) = files(tmp_path)
            whole = path.read_text()
            for damage in ("", whole[:20], "[]", '{"choices": []}'):
                path.write_text(damage)
                assert (await ask(agent)).message == first.message
                assert path.read_text() == whole
        assert len(stub.bodies) == 5


async def test_only_replies_are_kept(tmp_path: Path) -> None:
    with chat_stub(script=[500, 500]) as stub:
        async with openai(stub, cache=tmp_path, retries=1) as agent:
            with pytest.raises(ModelBusy):
                await ask(agent)
            assert files(tmp_path) == []
            await ask(agent)
            assert len(files(tmp_path)) == 1


async def test_a_file_lies_in_a_folder_of_its_first_two_letters(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai(stub, cache=tmp_path) as agent:
            await ask(agent)
        identity = request_key("POST", f"{stub.url}/chat/completions", stub.bodies[0], 0)
    assert files(tmp_path) == [tmp_path / identity[:2] / f"{identity}.json"]


async def test_a_key_is_not_written_even_where_the_server_echoes_it(tmp_path: Path) -> None:
    with chat_stub(script=[chat({"content": f"You came with {SECRET}."})]) as stub:
        async with openai(stub, cache=tmp_path, key=SECRET) as agent:
            for _ in range(2):
                assert (await ask(agent)).message.content == "You came with ***."
    (path,) = files(tmp_path)
    assert SECRET not in path.read_text()


async def test_a_cache_that_cannot_be_written_costs_no_reply(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai(stub, cache=tmp_path / "gone") as agent:
            (tmp_path / "gone").rmdir()
            assert (await ask(agent)).message.tool_calls
            assert agent.faults == {"cache": 1}


def test_a_cache_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot hold cached replies"):
        ResponseCache(tmp_path / "file" / "below")


def test_the_order_of_fields_makes_no_difference_to_what_is_the_same_request() -> None:
    one = request_key("POST", "http://h", {"a": 1, "b": [1, 2]}, 0)
    assert one == request_key("POST", "http://h", {"b": [1, 2], "a": 1}, 0)
    others = [
        request_key("POST", "http://h", {"a": 1, "b": [2, 1]}, 0),
        request_key("POST", "http://i", {"a": 1, "b": [1, 2]}, 0),
        request_key("GET", "http://h", {"a": 1, "b": [1, 2]}, 0),
        request_key("POST", "http://h", {"a": 1, "b": [1, 2]}, 1),
    ]
    assert len({one, *others}) == 5


def test_a_reply_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ResponseCache(tmp_path)
    cache.put("abcd", '{"n": 1}')

    def fail(*paths: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", fail)
        broken.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="full"):
            cache.put("abcd", '{"n": 2}')
    assert cache.get("abcd") == {"n": 1}
