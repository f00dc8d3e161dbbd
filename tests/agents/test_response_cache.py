"""The cache of API responses on disk."""

import os
from pathlib import Path

import pytest
from chat_stub import chat_stub

from agents.stub_agents import SECRET, ask, chat_response, openai_agent, user_message
from ludus.agents.prices import PriceTable, Rate
from ludus.agents.provider import ResponseCache, request_key
from ludus.errors import ConfigError, ModelBusy


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_an_identical_request_is_answered_from_the_cache_at_no_cost(tmp_path: Path) -> None:
    prices = PriceTable({"m": Rate(input=1, output=1)})
    with chat_stub() as stub:
        async with openai_agent(stub, cache=tmp_path / "cache", prices=prices) as agent:
            first = await ask(agent)
        async with openai_agent(stub, cache=tmp_path / "cache", prices=prices) as agent:
            again = await ask(agent)
        assert len(stub.bodies) == 1
    assert again.message == first.message
    assert first.usage.cost is not None and first.usage.cost > 0
    assert again.usage == first.usage.model_copy(update={"cost": 0.0})


async def test_a_cached_response_needs_no_throttle_slot(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai_agent(stub, cache=tmp_path, concurrency=1) as agent:
            first = await ask(agent)
            async with agent.client.throttle.slot():
                assert (await ask(agent)).message == first.message


async def test_different_requests_and_group_members_are_cached_separately(
    tmp_path: Path,
) -> None:
    with chat_stub() as stub:
        async with openai_agent(stub, cache=tmp_path) as agent:
            for _ in range(2):
                await ask(agent, member=0)
                await ask(agent, member=1)
                await ask(agent, user_message("Other"))
                await ask(agent, max_tokens=5)
        assert len(stub.bodies) == 4
    assert len(files(tmp_path)) == 4


async def test_a_corrupt_file_counts_as_absent_and_is_replaced(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai_agent(stub, cache=tmp_path) as agent:
            first = await ask(agent)
            (path,) = files(tmp_path)
            whole = path.read_text()
            for damage in ("", whole[:20], "[]", '{"choices": []}'):
                path.write_text(damage)
                assert (await ask(agent)).message == first.message
                assert path.read_text() == whole
        assert len(stub.bodies) == 5


async def test_errors_are_not_cached(tmp_path: Path) -> None:
    with chat_stub(script=[500, 500]) as stub:
        async with openai_agent(stub, cache=tmp_path, max_retries=1) as agent:
            with pytest.raises(ModelBusy):
                await ask(agent)
            assert files(tmp_path) == []
            await ask(agent)
            assert len(files(tmp_path)) == 1


async def test_a_file_lies_in_a_folder_of_the_keys_first_two_digits(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai_agent(stub, cache=tmp_path) as agent:
            await ask(agent)
        key = request_key("POST", f"{stub.url}/chat/completions", stub.bodies[0], 0)
    assert files(tmp_path) == [tmp_path / key[:2] / f"{key}.json"]


async def test_an_api_key_that_the_server_echoes_is_not_written(tmp_path: Path) -> None:
    with chat_stub(script=[chat_response({"content": f"You came with {SECRET}."})]) as stub:
        async with openai_agent(stub, cache=tmp_path, key=SECRET) as agent:
            for _ in range(2):
                assert (await ask(agent)).message.content == "You came with ***."
    (path,) = files(tmp_path)
    assert SECRET not in path.read_text()


async def test_a_reply_is_returned_although_the_cache_cannot_be_written(tmp_path: Path) -> None:
    with chat_stub() as stub:
        async with openai_agent(stub, cache=tmp_path / "gone") as agent:
            (tmp_path / "gone").rmdir()
            assert (await ask(agent)).message.tool_calls
            assert agent.faults == {"cache": 1}


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="below"):
        ResponseCache(tmp_path / "file" / "below")


def test_the_key_does_not_depend_on_the_order_of_fields() -> None:
    one = request_key("POST", "http://h", {"a": 1, "b": [1, 2]}, 0)
    assert one == request_key("POST", "http://h", {"b": [1, 2], "a": 1}, 0)
    others = [
        request_key("POST", "http://h", {"a": 1, "b": [2, 1]}, 0),
        request_key("POST", "http://i", {"a": 1, "b": [1, 2]}, 0),
        request_key("GET", "http://h", {"a": 1, "b": [1, 2]}, 0),
        request_key("POST", "http://h", {"a": 1, "b": [1, 2]}, 1),
    ]
    assert len({one, *others}) == 5


def test_a_failed_write_keeps_the_old_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
