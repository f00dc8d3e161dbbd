"""The official client's Responses API against a real model server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from policy.trained_policies import player
from pydantic import TypeAdapter
from world import wait_until

from serve.model.model_serving import QUESTION, ServedModel, counter_question, serving_model

PATH = "/v1/responses"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def nonsense() -> Iterator[ServedModel]:
    with serving_model(fast=True) as served:
        yield served


@pytest.fixture(scope="module")
def counting() -> Iterator[ServedModel]:
    with serving_model(player()) as served:
        yield served


def counter_request() -> dict[str, Any]:
    question = counter_question()
    tools = [{"type": "function", **tool["function"]} for tool in question["tools"]]
    options = {"model": "player", "temperature": 0, "max_output_tokens": 60}
    return {"input": question["messages"], "tools": tools, **options}


def stream_events(served: ServedModel, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream; each has the form that the client declares."""
    lines = served.post(PATH, {**body, "stream": True}).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data")]
    assert [f"event: {each['type']}" for each in events] == [
        line for line in lines if line.startswith("event")
    ]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    for each in events:
        EVENTS.validate_python(each)
    return events


def test_a_response_is_the_chat_reply_to_the_same_messages(nonsense: ServedModel) -> None:
    client = nonsense.client()
    reply = client.chat.completions.create(
        model="nonsense",
        messages=[{"role": "system", "content": "Be brief."}, *QUESTION],
        max_tokens=7,
        seed=3,
    )
    response = client.responses.create(
        model="nonsense",
        instructions="Be brief.",
        input=QUESTION[0]["content"],
        max_output_tokens=7,
        extra_body={"seed": 3},
    )
    assert response.output_text == reply.choices[0].message.content
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[-1].status == "incomplete"
    assert response.usage.input_tokens == reply.usage.prompt_tokens
    assert response.usage.output_tokens == 7
    assert response.usage.total_tokens == reply.usage.total_tokens


def test_a_response_has_all_fields_of_the_api(counting: ServedModel) -> None:
    body = {**counter_request(), "store": True, "top_p": 0.9}
    response = counting.post(PATH, body)
    parsed = Response.model_validate(response.json())
    assert parsed.status == "completed" and parsed.id.startswith("resp_")
    assert parsed.top_p == 0.9
    assert response.json()["store"] is False
    assert [tool.name for tool in parsed.tools if tool.type == "function"] == [
        tool["name"] for tool in body["tools"]
    ]


def test_tool_calls_go_back_and_forth(counting: ServedModel) -> None:
    client, request = counting.client(), counter_request()
    question = counter_question()
    first = client.responses.create(**request)
    (call,) = (item for item in first.output if item.type == "function_call")
    assert call.name == "add" and json.loads(call.arguments) == {"number": 3}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "The count is 3."}
    items = [*request["input"], *(item.model_dump() for item in first.output), output]
    second = client.responses.create(**{**request, "input": items})

    options = {"model": "player", "tools": question["tools"], "temperature": 0, "max_tokens": 60}
    messages = list[Any](question["messages"])
    reply = client.chat.completions.create(messages=messages, **options)
    tool = {"role": "tool", "tool_call_id": call.call_id, "content": output["output"]}
    messages += [reply.choices[0].message.model_dump(), tool]
    expected = client.chat.completions.create(messages=messages, **options)
    assert second.usage.input_tokens == expected.usage.prompt_tokens
    calls = [item.arguments for item in second.output if item.type == "function_call"]
    assert calls == [call.function.arguments for call in expected.choices[0].message.tool_calls]


def test_a_stream_of_text_adds_up_to_the_response(nonsense: ServedModel) -> None:
    options = {"model": "nonsense", "input": QUESTION, "max_output_tokens": 40}
    client, seed = nonsense.client(), {"seed": 9}
    whole = client.responses.create(**options, extra_body=seed)
    text, final, types = "", None, []
    for event in client.responses.create(**options, extra_body=seed, stream=True):
        types.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type in ("response.completed", "response.incomplete"):
            final = event.response
    assert final is not None and text == final.output_text == whole.output_text
    assert (final.status, final.usage) == (whole.status, whole.usage)
    assert types[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert types[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    assert set(types[4:-4]) == {"response.output_text.delta"}


def test_a_stream_of_a_tool_call(counting: ServedModel) -> None:
    request = counter_request()
    events = stream_events(counting, request)
    call_events = [each for each in events if "function_call_arguments" in each["type"]]
    assert [each["type"].rpartition(".")[2] for each in call_events] == ["delta", "done"]
    assert json.loads(call_events[-1]["arguments"]) == {"number": 3}
    assert events[-1]["type"] == "response.completed"
    whole = counting.post(PATH, request).json()
    assert without_ids(events[-1]["response"]["output"]) == without_ids(whole["output"])
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_the_stream_helper_of_the_client_has_the_final_response(counting: ServedModel) -> None:
    with counting.client().responses.stream(**counter_request()) as stream:
        final = stream.get_final_response()
    (call,) = (item for item in final.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"number": 3}


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def test_calls_are_text_where_tool_choice_is_none(counting: ServedModel) -> None:
    client, request = counting.client(), {**counter_request(), "max_output_tokens": 30}
    none = client.responses.create(**request, tool_choice="none")
    plain = client.responses.create(**{**request, "tools": []})
    assert none.output and none.usage == plain.usage
    assert "function_call" not in {item.type for item in none.output}
    streamed = stream_events(counting, {**request, "tool_choice": "none"})[-1]["response"]
    assert without_ids(streamed["output"]) == without_ids(
        [item.model_dump(exclude_unset=True) for item in none.output]
    )


def test_fields_that_agents_send_and_that_change_nothing_are_accepted(
    nonsense: ServedModel,
) -> None:
    fields = {
        "store": True,
        "previous_response_id": None,
        "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": False,
        "prompt_cache_key": "thread-1",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "truncation": "disabled",
    }
    response = nonsense.post(PATH, {"input": "Hello", "max_output_tokens": 1, **fields})
    assert response.status_code == 200
    Response.model_validate(response.json())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
    ],
)
def test_a_bad_field_is_named(nonsense: ServedModel, fields: dict[str, Any], param: str) -> None:
    response = nonsense.post(PATH, {"input": "Hello", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param


def test_errors_raise_in_the_client(nonsense: ServedModel) -> None:
    client = nonsense.client()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="gpt-5", input="Hello")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model="nonsense", input="seven and five make twelve " * 1000)
    assert long.value.code == "context_length_exceeded" and long.value.param == "input"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")


def test_requests_are_counted_by_status() -> None:
    with serving_model() as served:
        body = {"input": "Hello", "max_output_tokens": 2, "seed": 1}
        served.post(PATH, body)
        served.post(PATH, {**body, "stream": True})
        served.post(PATH, {"input": []})
        name = f'ludus_model_requests_total{{path="{PATH}",status='
        assert served.metric(f'{name}"200"') == 2
        assert served.metric(f'{name}"400"') == 1
        assert served.metric("ludus_model_completion_tokens_total") == 4


def test_a_stream_that_fails_ends_with_the_error() -> None:
    with serving_model(shutdown_timeout=0.1) as served:
        served.agent.engine.pause()
        body = {"input": "Hello", "stream": True}
        with httpx.stream("POST", f"{served.url}{PATH}", json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: response.created"
            wait_until(lambda: served.metric("ludus_model_requests_in_flight") == 1)
            served.server.should_exit = True
            last = [line for line in lines if line.startswith("data")][-1]
        served.agent.engine.release()
    event = json.loads(last.removeprefix("data: "))
    assert event["type"] == "response.failed" and event["response"]["status"] == "failed"
    assert event["response"]["error"]["code"] == "server_error"
    EVENTS.validate_python(event)
