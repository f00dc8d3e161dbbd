"""Limits of a model server: the queue, sizes, access; clients that leave, and the shutdown."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import ValidationError
from transformers.utils import chat_template_utils
from world import wait_until

from ludus.policy.chat.encoding import _CachedTokenizer
from ludus.serve.config import ModelServeConfig, ServeError, check_model_config
from ludus.serve.model import requests
from ludus.serve.model.api_errors import from_validation_error
from serve.model.model_serving import QUESTION, ServedModel, random_policy, serving_model
from serve.silent_client import SilentClient

BODY = {"messages": QUESTION, "max_tokens": 8}
CHAT = "/v1/chat/completions"
IN_FLIGHT = "ludus_model_requests_in_flight"


def test_a_full_queue_refuses_with_the_time_to_wait() -> None:
    with serving_model(max_batch=1, max_queue=1) as served, ThreadPoolExecutor(2) as pool:
        served.agent.engine.pause()
        waiting = [pool.submit(served.post, CHAT, BODY) for _ in range(2)]
        wait_until(lambda: served.metric(IN_FLIGHT) == 2)
        refused = served.post(CHAT, BODY)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) >= 1
        served.agent.engine.release()
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert served.post(CHAT, BODY).status_code == 200
        assert served.metric(IN_FLIGHT) == 0


def test_choices_count_in_the_queue() -> None:
    with serving_model(max_batch=1, max_queue=2) as served:
        assert served.post(CHAT, {**BODY, "n": 3}).status_code == 200
        refused = served.post(CHAT, {**BODY, "n": 4})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "n"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_gives_up_its_place(stream: bool) -> None:
    with serving_model(max_batch=1) as served:
        served.agent.engine.pause()
        content = json.dumps({**BODY, "stream": stream}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + content)
            wait_until(lambda: served.metric(IN_FLIGHT) == 1)
        wait_until(lambda: served.metric(IN_FLIGHT) == 0)
        assert served.metric("ludus_model_requests_cancelled_total") == 1
        served.agent.engine.release()
        assert served.post(CHAT, BODY).status_code == 200


@pytest.mark.parametrize("fast", [True, False])
def test_decoding_stops_for_a_stream_that_is_closed(fast: bool) -> None:
    with serving_model(max_batch=1, fast=fast) as served:
        assert served.agent.engine_description.startswith("Triton" if fast else "HF")
        served.agent.engine.pause(after_polls=4)
        body = {**BODY, "max_tokens": 2000, "stream": True, "temperature": 0}
        with httpx.stream("POST", f"{served.url}{CHAT}", json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert '"role": "assistant"' in next(lines)
            wait_until(lambda: served.metric("ludus_model_first_token_seconds_count") == 1)
        wait_until(lambda: served.metric("ludus_model_requests_cancelled_total") == 1)
        served.agent.engine.release()
        assert served.post(CHAT, {**BODY, "max_tokens": 1}).status_code == 200
        assert served.metric("ludus_engine_sampled_tokens") < 100


def test_a_body_that_is_too_large_is_refused() -> None:
    with serving_model(max_body=2000) as served:
        refused = served.post(CHAT, {"messages": [{"role": "user", "content": "x" * 3000}]})
        assert refused.status_code == 413
        assert refused.json()["error"]["type"] == "invalid_request_error"


def test_a_token_is_required_and_foreign_pages_are_refused() -> None:
    with serving_model(token="s3cret") as served:
        refused = served.post(CHAT, BODY)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            served.client().models.list()
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="s3cret")
        assert client.chat.completions.create(model="nonsense", messages=QUESTION, max_tokens=1)
        assert httpx.get(f"{served.url}/health").status_code == 200
        headers = {"Origin": "https://evil.example", "Authorization": "Bearer s3cret"}
        page = served.post(CHAT, BODY, headers=headers)
        assert page.status_code == 403 and page.json()["error"]["type"] == "permission_error"


_LONG = "x" * 300_000
_CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": f'"{_LONG}"'}}


def _tool(schema: dict[str, object]) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": _LONG}]}),
        (CHAT, {"messages": [{"role": "assistant", "reasoning_content": _LONG}, *QUESTION]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [_CALL]}, *QUESTION]}),
        (CHAT, {"messages": [{"role": "user"}] * 20_000}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}] * 20_000}]}),
        (
            CHAT,
            {"messages": QUESTION, "tools": [{"function": {"name": "f", "description": _LONG}}]},
        ),
        (CHAT, {"messages": QUESTION, "tools": [_tool({"enum": [10**4000] * 100})]}),
        ("/v1/responses", {"input": QUESTION, "instructions": _LONG}),
        (
            "/v1/responses",
            {
                "input": "x",
                "tools": [{"type": "function", "name": "f", "parameters": {"a": _LONG}}],
            },
        ),
        ("/tokenize", {"prompt": _LONG}),
        ("/tokenize", {"messages": [{"role": "user"}] * 20_000}),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_rendered_and_tokenized(
    path: str, body: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("the prompt was rendered")

    with serving_model() as served:
        tokenizer = type(served.agent.runtime.policy.tokenizer)
        monkeypatch.setattr(tokenizer, "__call__", fail)
        monkeypatch.setattr(chat_template_utils, "render_jinja_template", fail)
        refused = served.post(path, body)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"


_NESTED = {"name": "f", "arguments": "[" * 1100 + "]" * 1100}
_NESTED_CALL = {"id": "a", "type": "function", "function": _NESTED}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [_NESTED_CALL]}]}),
        ("/tokenize", {"messages": [{"role": "assistant", "tool_calls": [_NESTED_CALL]}]}),
        ("/v1/responses", {"input": [{"type": "function_call", "call_id": "a", **_NESTED}]}),
    ],
)
def test_arguments_of_calls_that_are_nested_too_deeply_are_text(
    path: str, body: dict[str, list[Any]]
) -> None:
    (messages,) = body.values()
    messages += QUESTION
    with serving_model(random_policy(context=8_000)) as served:
        assert served.post(path, {**body, "max_tokens": 1}).status_code == 200


def test_images_do_not_count_as_text() -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{_LONG}"}
    output = {"type": "function_call_output", "call_id": "a", "output": [image]}
    with serving_model() as served:
        refused = served.post("/v1/responses", {"input": [output]}).json()["error"]
        assert "images" in refused["message"] and refused["code"] is None


def test_a_prompt_that_is_a_little_too_long_is_tokenized_and_refused() -> None:
    with serving_model() as served:
        messages = [{"role": "user", "content": "x " * 20_000}]
        refused = served.post(CHAT, {"messages": messages}).json()["error"]
        assert refused["code"] == "context_length_exceeded" and refused["param"] == "messages"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": ["x"] * 9_000}),
        (CHAT, {"messages": [{"role": "user", "content": [1] * 9_000}]}),
        ("/v1/responses", {"input": ["x"] * 9_000}),
        ("/tokenize", {"messages": [None] * 9_000}),
        ("/sessions/x/reward", {"rewards": {str(key): "x" for key in range(9_000)}}),
    ],
)
def test_of_many_mistakes_the_first_is_reported(
    path: str, body: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million errors would take gigabytes."""
    counts = []

    def count_errors(error: ValidationError) -> object:
        counts.append(error.error_count())
        return from_validation_error(error)

    monkeypatch.setattr(requests, "from_validation_error", count_errors)
    with serving_model(record=tmp_path / "run") as served:
        assert served.post(path, body).status_code == 400
    assert counts and counts[0] <= 4


def test_long_tools_and_bodies_are_processed_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: dict[str, set[str]] = {}
    for owner, name in (
        (requests, "_parse"),
        (chat_template_utils, "render_jinja_template"),
        (_CachedTokenizer, "encode"),
    ):
        monkeypatch.setattr(
            owner, name, _watch(getattr(owner, name), threads.setdefault(name, set()))
        )
    tool = {"function": {"name": "f", "description": "x " * 30_000}}
    with serving_model(random_policy(context=8_000)) as served:
        names = threads.values()
        for each in names:
            each.clear()
        assert served.post(CHAT, {**BODY, "tools": [tool]}).status_code == 400
    assert all(names)
    executors = {"asyncio", "uvloop"}
    assert {name.rpartition("_")[0] for name in set().union(*names)} <= executors


def _watch(work: Callable[..., Any], threads: set[str]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread().name)
        return work(*args, **kwargs)

    return watched


def test_a_client_that_reads_nothing_is_disconnected() -> None:
    with serving_model(send_timeout=0.2) as served, SilentClient(served.url) as client:
        client.send_posts("/tokenize", json.dumps({"prompt": "a " * 8_000}).encode(), 400)
        wait_until(lambda: served.server.server_state.total_requests > 0)

        def is_disconnected() -> bool:
            client.send_rest()
            return not served.server.server_state.connections

        wait_until(is_disconnected)


def test_failed_requests_are_counted_with_their_status() -> None:
    with serving_model(max_body=2000) as served:
        served.post(CHAT, {"messages": [{"role": "user", "content": "x" * 3000}]})
        served.post(CHAT, BODY)
        served.post(CHAT, {**BODY, "top_k": 2**70})
        port = int(served.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
            connection.sendall(head.encode() + b"{")
        statuses = ("200", "400", "413", "499")
        wait_until(lambda: all(_count_status(served, status) for status in statuses))
        assert _count_status(served, "500") == 0


def _count_status(served: ServedModel, status: str) -> float:
    lines = httpx.get(f"{served.url}/metrics").text.splitlines()
    counts = (line for line in lines if line.startswith("ludus_model_requests_total"))
    return sum(float(line.split()[-1]) for line in counts if f'"{status}"' in line)


def test_stop_sequences_are_limited() -> None:
    with serving_model() as served:
        for stop in ("x" * 2000, ["x", "y" * 2000], ["x"] * 17, [""]):
            assert served.post(CHAT, {**BODY, "stop": stop}).status_code == 400
        assert served.post(CHAT, {**BODY, "stop": ["x" * 1024] * 16}).status_code == 200


def test_numbers_that_float32_cannot_hold_are_sampled_greedily() -> None:
    with serving_model() as served:
        replies = [
            served.post(CHAT, {**BODY, **options}).json()["choices"][0]["message"]
            for options in ({"temperature": 0}, {"temperature": 1e-46}, {"top_p": 1e-320})
        ]
        assert replies[0] == replies[1] == replies[2]


def test_an_origin_that_is_no_url_is_refused() -> None:
    with serving_model() as served:
        headers = {"Origin": "http://[bad"}
        assert httpx.get(f"{served.url}/v1/models", headers=headers).status_code == 403


def test_a_model_is_described_under_all_its_names() -> None:
    with serving_model(served_name="alias") as served:
        for name in ("alias", "nonsense"):
            assert served.client().models.retrieve(name).id == "alias"


def test_running_requests_finish_before_the_server_stops() -> None:
    with serving_model() as served, ThreadPoolExecutor(1) as pool:
        served.agent.engine.pause()
        running = pool.submit(served.post, CHAT, BODY)
        wait_until(lambda: served.metric(IN_FLIGHT) == 1)
        served.server.should_exit = True
        wait_until(lambda: _is_refused(served.url))
        served.agent.engine.release()
        assert running.result().status_code == 200


def test_requests_that_do_not_finish_are_told_that_the_server_stops() -> None:
    with serving_model(shutdown_timeout=0.1) as served, ThreadPoolExecutor(1) as pool:
        served.agent.engine.pause()
        running = pool.submit(served.post, CHAT, BODY)
        wait_until(lambda: served.metric(IN_FLIGHT) == 1)
        served.server.should_exit = True
        response = running.result()
        served.agent.engine.release()
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "server_error"


def _is_refused(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.ConnectError:
        return True
    return False


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"port": 70000},
        {"max_tokens": 0},
        {"max_queue": -1},
        {"session_timeout": 0.0},
    ],
)
def test_an_invalid_config_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ServeError):
        check_model_config(ModelServeConfig(**settings))  # type: ignore[arg-type]
