"""Replies that must be JSON, or a call: `response_format` and `tool_choice` on a random model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import torch
from jsonschema import validate
from pydantic import BaseModel, ConfigDict
from world import wait_until

from ludus.data.episode import Episode
from ludus.policy.engine import schema_trial
from serve.model.model_serving import QUESTION, ServedModel, random_policy, serving_model

pytest.importorskip("llguidance", reason="needs the extra train")

BIRD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["robin", "wren"]},
        "eggs": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "age": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 99}, {"type": "null"}]},
    },
    "required": ["name", "eggs", "age"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "bird", "schema": BIRD}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "feed", "parameters": BIRD}},
    {"type": "function", "function": {"name": "fly_away"}},
]


@pytest.fixture(scope="module", params=[True, False], ids=["triton", "hf"])
def served(request: pytest.FixtureRequest) -> Iterator[ServedModel]:
    with serving_model(fast=request.param) as served:
        yield served


@pytest.fixture(scope="module")
def one() -> Iterator[ServedModel]:
    """A server for what does not depend on the engine."""
    with serving_model(fast=True) as served:
        yield served


def ask(served: ServedModel, **options: Any) -> Any:
    settings = {"model": "nonsense", "messages": QUESTION, "max_tokens": 200, "seed": 7}
    return served.client().chat.completions.create(**{**settings, **options})


def test_a_random_model_writes_json_of_the_schema(served: ServedModel) -> None:
    reply = ask(served, response_format=FORMAT, n=4)
    texts = [choice.message.content for choice in reply.choices]
    assert len(set(texts)) > 1
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        validate(json.loads(choice.message.content), BIRD)
    for options in ({"temperature": 0}, {"top_p": 0.3, "temperature": 1}, {"top_k": 2}):
        extra = {"extra_body": options} if "top_k" in options else options
        (choice,) = ask(served, response_format=FORMAT, **extra).choices
        validate(json.loads(choice.message.content), BIRD)


def test_a_stream_has_the_same_json(served: ServedModel) -> None:
    whole = ask(served, response_format=FORMAT).choices[0].message.content
    chunks = list(ask(served, response_format=FORMAT, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_json_object_is_an_object(one: ServedModel) -> None:
    reply = ask(one, response_format={"type": "json_object"}, n=8)
    ended = [each for each in reply.choices if each.finish_reason == "stop"]
    assert ended and all(isinstance(json.loads(each.message.content), dict) for each in ended)
    assert all(each.message.content.startswith("{") for each in reply.choices)


def test_the_clients_own_parsing_of_pydantic_models_works(one: ServedModel) -> None:
    class Egg(BaseModel):
        model_config = ConfigDict(extra="forbid")
        color: Literal["white", "blue"]

    class Nest(BaseModel):
        model_config = ConfigDict(extra="forbid")
        eggs: tuple[Egg, Egg]
        left: bool | None = None

    client = one.client()
    reply = client.chat.completions.parse(
        model="nonsense", messages=QUESTION, response_format=Nest, seed=3, max_tokens=200
    )
    assert isinstance(reply.choices[0].message.parsed, Nest)
    response = client.responses.parse(model="nonsense", input="Which?", text_format=Nest)
    assert isinstance(response.output_parsed, Nest)
    assert response.text.format.name == "Nest"


def test_required_and_named_tools_are_called_with_valid_arguments(served: ServedModel) -> None:
    reply = ask(served, tools=TOOLS, tool_choice="required", n=6)
    names = set()
    for choice in reply.choices:
        assert choice.finish_reason == "tool_calls" and not choice.message.content
        (call,) = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        validate(arguments, BIRD) if call.function.name == "feed" else None
        assert call.function.name == "feed" or arguments == {}
        names.add(call.function.name)
    assert names == {"feed", "fly_away"}
    named: Any = {"type": "function", "function": {"name": "feed"}}
    (choice,) = ask(served, tools=TOOLS, tool_choice=named).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["feed"]
    chunks = ask(served, tools=TOOLS, tool_choice=named, stream=True)
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
    (delta,) = deltas
    assert delta.function.arguments == choice.message.tool_calls[0].function.arguments


def test_tools_stay_open_beside_a_format_of_the_content(one: ServedModel) -> None:
    reply = ask(one, tools=TOOLS, response_format=FORMAT, n=16, temperature=2)
    called = [bool(choice.message.tool_calls) for choice in reply.choices]
    assert set(called) == {True, False}
    for choice in reply.choices:
        if not choice.message.tool_calls:
            validate(json.loads(choice.message.content), BIRD)


def test_responses_take_formats_and_required_tools(one: ServedModel) -> None:
    client = one.client()
    settings: dict[str, Any] = {"model": "nonsense", "input": "Which?", "max_output_tokens": 200}
    form = {"type": "json_schema", "name": "bird", "schema": BIRD, "strict": True}
    response = client.responses.create(**settings, text={"format": form})
    validate(json.loads(response.output_text), BIRD)
    assert response.text.format.type == "json_schema" and response.text.format.schema_ == BIRD
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    choice = {"type": "function", "name": "feed"}
    response = client.responses.create(**settings, tools=tools, tool_choice=choice)
    (item,) = response.output
    assert (item.type, item.name) == ("function_call", "feed")
    validate(json.loads(item.arguments), BIRD)
    assert response.tool_choice.name == "feed"


def test_top_logprobs_are_the_most_likely_of_the_tokens_that_were_allowed(
    served: ServedModel,
) -> None:
    reply = ask(served, response_format=FORMAT, logprobs=True, top_logprobs=20)
    tokens = reply.choices[0].logprobs.content
    assert "".join(token.token for token in tokens).lstrip().startswith('{"name"')
    for token in tokens:
        values = [each.logprob for each in token.top_logprobs]
        assert values == sorted(values, reverse=True) and 0 < len(values) <= 20
        same = [each.logprob for each in token.top_logprobs if each.token == token.token]
        assert len(values) == 20 or same == pytest.approx([token.logprob], abs=1e-5)
    # Where the grammar leaves one token, it is sure; and so the masked probabilities add up to 1.
    few = [token for token in tokens if len(token.top_logprobs) < 20]
    for token in few:
        total = sum(torch.tensor(each.logprob).exp().item() for each in token.top_logprobs)
        assert total == pytest.approx(1, abs=1e-4)
    assert few


def test_top_logprobs_of_free_replies_and_of_text(served: ServedModel) -> None:
    options: dict[str, Any] = {"max_tokens": 5, "logprobs": True, "top_logprobs": 3}
    tokens = ask(served, **options).choices[0].logprobs.content
    chunks = [chunk.choices[0].logprobs for chunk in ask(served, **options, stream=True)]
    streamed = [token for logprobs in chunks if logprobs for token in logprobs.content]
    assert streamed == tokens and all(len(token.top_logprobs) == 3 for token in tokens)
    # Tokens by their ids, because parts of characters have the same text.
    settings = {"prompt": "You are", "max_tokens": 4, "return_tokens_as_token_ids": True}
    reply = served.post("/v1/completions", {**settings, "logprobs": 5}).json()
    text = reply["choices"][0]["logprobs"]
    pairs = zip(text["tokens"], text["token_logprobs"], text["top_logprobs"], strict=True)
    assert all(top[token] == value and len(top) in (5, 6) for token, value, top in pairs)


def test_free_replies_in_the_same_batch_do_not_change(served: ServedModel) -> None:
    def texts(reply: Any) -> list[str]:
        return [choice.message.content for choice in reply.choices]

    alone = texts(ask(served, n=2, max_tokens=30))
    served.agent.engine.pause()
    with ThreadPoolExecutor(3) as pool:
        # The first one is decoded while the others come, and share the next batch.
        first = pool.submit(ask, served, max_tokens=2)
        wait_until(lambda: served.metric("ludus_model_requests_in_flight") == 1)
        free = pool.submit(ask, served, n=2, max_tokens=30)
        bound = pool.submit(ask, served, response_format=FORMAT)
        wait_until(lambda: served.metric("ludus_model_requests_in_flight") == 4)
        served.agent.engine.release()
        first.result()
        validate(json.loads(texts(bound.result())[0]), BIRD)
        assert texts(free.result()) == alone


BAD_SCHEMAS: dict[str, Any] = {
    "wrong": {"type": "banana"},
    "not supported": {"not": {"type": "string"}},
    "outside": {"$ref": "http://127.0.0.1:9/schema.json"},
    "too large": {"enum": ["x" * 100 + str(i) for i in range(1000)]},
    "impossible": {"$ref": "#"},
    "deep": json.loads('{"items":' * 150 + "{}" + "}" * 150),
    "overflows the stack": {
        "$ref": "#/$defs/0",
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)} | {"3000": {}},
    },
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_a_bad_schema_is_refused_in_one_line_and_the_server_goes_on(
    one: ServedModel, name: str
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD_SCHEMAS[name]}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(one, response_format=form)
    assert refused.value.param == "response_format"
    message = refused.value.body["message"]  # type: ignore[index]
    assert "\n" not in message and len(message) < 400
    assert ask(one, max_tokens=1).choices


def test_a_schema_that_takes_too_much_work_while_decoding_ends_its_reply_alone(
    served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llguidance import LLMatcher, LLParserLimits

    little = LLParserLimits(step_max_items=3)
    monkeypatch.setattr(
        schema_trial, "build_matcher", lambda *args: LLMatcher(*args, log_level=0, limits=little)
    )
    form = {"type": "json_schema", "json_schema": {"schema": {**BIRD, "title": "too much"}}}
    with pytest.raises(openai.BadRequestError, match="could not follow"):
        ask(served, response_format=form)
    with pytest.raises(openai.APIError, match="could not follow"):
        list(ask(served, response_format=form, stream=True))
    assert ask(served, max_tokens=1).choices


def test_without_llguidance_free_replies_work_and_others_are_refused(
    one: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(openai.BadRequestError, match=r"ludus-rl\[train\]"):
        ask(one, response_format={"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}})
    assert ask(one, max_tokens=1).choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "swim"}}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_cannot_be_constrained_is_refused(
    one: ServedModel, fields: dict[str, Any], param: str
) -> None:
    response = one.post("/v1/chat/completions", {"messages": QUESTION, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_recorded_probabilities_are_those_of_the_tokens_that_were_allowed(tmp_path: Path) -> None:
    with serving_model(random_policy(), record=tmp_path / "run", fast=True) as served:
        sampled = ask(served, response_format=FORMAT, logprobs=True).choices[0].logprobs.content
        ask(served, max_tokens=2)
    lines = (tmp_path / "run" / "episodes.jsonl").read_bytes().splitlines()
    bound, free = map(Episode.from_line, lines)
    assert bound.agent["constrained"] is True and "constrained" not in free.agent
    assert bound.tokens is not None
    recorded = [each for each in bound.tokens.logprobs if each is not None]
    assert recorded == [token.logprob for token in sampled]
    assert recorded.count(0.0) > 2, "tokens without an alternative"
