"""The official client of OpenAI's API against a real model server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from policy.trained_policies import player

from serve.model.model_serving import QUESTION, ServedModel, counter_question, serving_model


@pytest.fixture(scope="module")
def nonsense() -> Iterator[ServedModel]:
    # The engine of GPUs, with its reference operations.
    with serving_model(fast=True) as served:
        yield served


@pytest.fixture(scope="module")
def counting() -> Iterator[ServedModel]:
    with serving_model(player()) as served:
        yield served


def test_models_lists_the_one_that_is_served(nonsense: ServedModel) -> None:
    client = nonsense.client()
    (model,) = client.models.list().data
    assert model.id == "nonsense"
    assert client.models.retrieve("nonsense").id == "nonsense"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert refused.value.code == "model_not_found" and refused.value.param == "model"


def test_a_reply_has_usage_and_log_probabilities(nonsense: ServedModel) -> None:
    reply = nonsense.client().chat.completions.create(
        model="nonsense", messages=QUESTION, max_tokens=7, logprobs=True, seed=3
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "length" and choice.message.role == "assistant"
    assert reply.usage is not None and reply.usage.completion_tokens == 7
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 7
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 7
    assert all(token.logprob < 0 for token in choice.logprobs.content)


def test_a_seed_repeats_a_reply_and_choices_differ(nonsense: ServedModel) -> None:
    def ask(seed: int | None) -> list[str | None]:
        reply = nonsense.client().chat.completions.create(
            model="nonsense", messages=QUESTION, max_completion_tokens=8, n=3, seed=seed
        )
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        assert reply.usage is not None
        # Without a seed, a reply may end by itself.
        assert seed is None or reply.usage.completion_tokens == 24
        return [choice.message.content for choice in reply.choices]

    assert ask(5) == ask(5)
    assert len(set(ask(5))) == 3
    assert ask(5) != ask(6)
    assert ask(None) != ask(None)


def test_requests_sample_as_the_server_says_unless_they_say_more() -> None:
    with serving_model(temperature=0) as served:

        def ask(**options: Any) -> set[str]:
            body = {"messages": QUESTION, "max_tokens": 8, **options}
            replies = [served.post("/v1/chat/completions", body).json() for _ in range(2)]
            return {reply["choices"][0]["message"]["content"] for reply in replies}

        assert len(ask()) == len(ask(top_p=0.9)) == 1
        assert len(ask(temperature=1.0)) == 2


def test_a_stream_adds_up_to_the_whole_reply(nonsense: ServedModel) -> None:
    options = {"model": "nonsense", "messages": QUESTION, "max_tokens": 40, "seed": 9}
    client = nonsense.client()
    whole = client.chat.completions.create(**options, n=2)
    texts, finishes, usage = ["", ""], {}, None
    stream = client.chat.completions.create(
        **options, n=2, stream=True, logprobs=True, stream_options={"include_usage": True}
    )
    num_logprobs = 0
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            num_logprobs += len((choice.logprobs and choice.logprobs.content) or ())
            if choice.finish_reason:
                finishes[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == num_logprobs


def test_a_stop_sequence_ends_a_reply_before_it(nonsense: ServedModel) -> None:
    options = {"model": "nonsense", "messages": QUESTION, "max_tokens": 60, "seed": 11}
    client = nonsense.client()
    text = client.chat.completions.create(**options).choices[0].message.content or ""
    stop = text[20:23]
    expected = text[: text.index(stop)].strip()
    reply = client.chat.completions.create(**options, stop=["never there", stop])
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].message.content == expected
    assert reply.usage is not None and reply.usage.completion_tokens < 60
    chunks = list(client.chat.completions.create(**options, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_tool_calls_are_returned_whole_and_streamed(counting: ServedModel) -> None:
    client = counting.client()
    options = {"model": "player", **counter_question(), "temperature": 0, "max_tokens": 60}
    reply = client.chat.completions.create(**options)
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "add"
    assert json.loads(call.function.arguments) == {"number": 3}
    streamed = [
        delta
        for chunk in client.chat.completions.create(**options, stream=True)
        for delta in chunk.choices[0].delta.tool_calls or ()
    ]
    (delta,) = streamed
    assert delta.function is not None
    assert (delta.id, delta.function.arguments) == (call.id, call.function.arguments)


def test_calls_are_text_where_no_tool_is_offered(counting: ServedModel) -> None:
    question = counter_question()
    options = {"model": "player", "messages": question["messages"], "temperature": 0}
    client = counting.client()
    plain = client.chat.completions.create(**options, max_tokens=30).choices[0]
    none = client.chat.completions.create(
        **options, tools=question["tools"], tool_choice="none", max_tokens=30
    ).choices[0]
    assert plain.message.tool_calls is None and plain.finish_reason in ("stop", "length")
    assert none.message.content == plain.message.content


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"chat_template_kwargs": {"enable_thikning": False}}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages",
        ),
    ],
)
def test_a_bad_field_is_named(nonsense: ServedModel, fields: dict[str, object], param: str) -> None:
    response = nonsense.post("/v1/chat/completions", {"messages": QUESTION, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param


def test_unsupported_fields_are_refused_and_unknown_ones_ignored(nonsense: ServedModel) -> None:
    body = {"messages": QUESTION, "max_tokens": 1}
    neutral = {"frequency_penalty": 0, "user": "me", "store": False, "stop": None, "foo": 1}
    assert nonsense.post("/v1/chat/completions", {**body, **neutral}).status_code == 200
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
    unsupported = {"frequency_penalty": 1.5, "response_format": schema, "tool_choice": "required"}
    for name, value in unsupported.items():
        refused = nonsense.post("/v1/chat/completions", {**body, name: value})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == name


def test_a_prompt_beyond_the_context_is_refused(nonsense: ServedModel) -> None:
    long = [{"role": "user", "content": "seven and five make twelve " * 1000}]
    with pytest.raises(openai.BadRequestError) as refused:
        nonsense.client().chat.completions.create(model="nonsense", messages=long)
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "messages"
    assert "maximum context length" in refused.value.message


def test_errors_of_routes_and_bodies_have_the_same_form(nonsense: ServedModel) -> None:
    missing = httpx.get(f"{nonsense.url}/v1/images")
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"
    broken = httpx.post(
        f"{nonsense.url}/v1/chat/completions",
        content=b"{",
        headers={"Content-Type": "application/json"},
    )
    assert broken.status_code == 400 and broken.json()["error"]["message"]


def test_clients_share_batches(nonsense: ServedModel) -> None:
    def ask(seed: int) -> Any:
        reply = nonsense.client().chat.completions.create(
            model="nonsense", messages=QUESTION, max_tokens=24, seed=seed
        )
        return reply.choices[0].message.content

    alone = [ask(seed) for seed in range(4)]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, [*range(4)] * 4))
    assert together == alone * 4
    assert nonsense.metric("ludus_engine_reused_tokens") > 0


def test_token_ids_are_returned_on_request(nonsense: ServedModel) -> None:
    body = {"messages": QUESTION, "max_tokens": 5, "seed": 1, "logprobs": True}
    extra = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    response = nonsense.post("/v1/chat/completions", {**body, **extra}).json()
    prompt = nonsense.post("/tokenize", {"messages": QUESTION}).json()
    assert response["prompt_token_ids"] == prompt["tokens"]
    (choice,) = response["choices"]
    named = [token["token"] for token in choice["logprobs"]["content"]]
    assert named == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert prompt["count"] == response["usage"]["prompt_tokens"]
