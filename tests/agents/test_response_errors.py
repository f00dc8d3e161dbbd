"""Classification of responses, in the formats of many servers."""

import json
from typing import Any

import pytest

from ludus.agents.provider_errors import (
    Refusal,
    RefusalReason,
    TransientFault,
    classify_response,
    parse_response_json,
    parse_retry_after,
)
from ludus.errors import BadReply, ModelBusy


def classify(status: int, body: Any, **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classify_response(status, headers, data)


def test_a_reply_is_returned_unchanged() -> None:
    assert classify(200, {"choices": [], "error": None}) == {"choices": [], "error": None}


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 529])
def test_an_overloaded_server_is_a_transient_fault(status: int) -> None:
    fault = classify(status, {"error": {"message": "Slow down."}})
    assert isinstance(fault, TransientFault) and fault.overloaded
    assert (fault.error_class, fault.kind) == (ModelBusy, str(status))
    assert str(status) in fault.text and "Slow down." in fault.text


@pytest.mark.parametrize("status", [408, 409, 425])
def test_other_transient_faults_are_no_overload(status: int) -> None:
    fault = classify(status, {})
    assert isinstance(fault, TransientFault)
    assert (fault.error_class, fault.overloaded) == (ModelBusy, False)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"half":', b"[1]", b'"text"', b"null"])
def test_a_response_that_is_not_a_json_object_is_a_fault(body: bytes) -> None:
    fault = classify(200, body)
    assert isinstance(fault, TransientFault)
    assert (fault.error_class, fault.kind, fault.overloaded) == (BadReply, "unreadable", False)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"error": {"code": 429, "message": "x"}}, "429"),
        ({"error": {"code": "503", "message": "x"}}, "503"),
        ({"error": {"code": "upstream_error", "message": "x"}}, "500"),
        ({"error": "x"}, "500"),
        ({"object": "error", "code": 502, "message": "x"}, "502"),
    ],
)
def test_an_error_under_a_200_is_classified_by_its_code(body: Any, kind: str) -> None:
    fault = classify(200, body)
    assert isinstance(fault, TransientFault) and fault.kind == kind and fault.overloaded


def test_a_refusal_under_a_200_is_a_refusal() -> None:
    assert classify(200, {"error": {"code": 401, "message": "no"}}) == Refusal(
        RefusalReason.KEY, "no"
    )


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, {"error": {"message": "Incorrect API key"}}, RefusalReason.KEY),
        (403, {"error": {"message": "Country not supported"}}, RefusalReason.KEY),
        (404, {"error": {"message": "The model `x` does not exist"}}, RefusalReason.MODEL),
        (402, {"error": {"message": "Insufficient credits"}}, RefusalReason.QUOTA),
        (429, {"error": {"message": "Quota", "code": "insufficient_quota"}}, RefusalReason.QUOTA),
        (
            400,
            {"error": {"message": "Your credit balance is too low to go on"}},
            RefusalReason.QUOTA,
        ),
        (307, b"", RefusalReason.MOVED),
        (400, {"error": {"message": "tools.0: bad schema"}}, RefusalReason.REQUEST),
        (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, RefusalReason.REQUEST),
        (400, {"error": {"message": "x", "code": "content_filter"}}, RefusalReason.FILTER),
        (
            400,
            {"error": {"message": "x", "code": "content_policy_violation"}},
            RefusalReason.FILTER,
        ),
        (
            400,
            {"error": {"message": "Output blocked by content filtering policy"}},
            RefusalReason.FILTER,
        ),
        (
            403,
            {"error": {"message": "x", "metadata": {"flagged_input": "y"}}},
            RefusalReason.FILTER,
        ),
    ],
)
def test_a_refusal_has_a_reason(status: int, body: Any, reason: RefusalReason) -> None:
    refusal = classify(status, body)
    assert isinstance(refusal, Refusal) and refusal.reason is reason


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"message": "too many", "code": "context_length_exceeded"}),
        (
            400,
            {
                "message": "This model's maximum context length is 4096 tokens. However, you "
                "requested 5000 tokens (904 in the messages, 4096 in the completion)."
            },
        ),
        (400, {"message": "The decoder prompt is longer than the maximum model length of 40."}),
        (400, {"message": "The input (9 tokens) is longer than the model's context length (4)."}),
        (400, {"message": "request (9 tokens) exceeds the available context size (4 tokens)"}),
        (500, {"message": "the request exceeds the available context size. try increasing it"}),
        (400, {"message": "x", "type": "exceed_context_size_error"}),
        (400, {"message": "prompt is too long: 210000 tokens > 200000 maximum"}),
        (400, {"message": "input length and `max_tokens` exceed context limit: 9 + 4 > 10"}),
        (400, {"message": "Your input exceeds the context window of this model."}),
        (422, {"message": "`inputs` tokens + `max_new_tokens` must be <= 8193"}),
        (400, {"message": "The input token count (9) exceeds the maximum allowed (4)."}),
    ],
)
def test_a_full_context_is_recognized(status: int, error: Any) -> None:
    refusal = classify(status, {"error": error})
    assert isinstance(refusal, Refusal) and refusal.reason is RefusalReason.CONTEXT


def test_an_echoed_request_does_not_determine_the_reason() -> None:
    echoed = "bad tool: " + "x" * 600 + " prompt is too long"
    refusal = classify(400, {"error": {"message": echoed, "param": "content_filter"}})
    assert isinstance(refusal, Refusal) and refusal.reason is RefusalReason.REQUEST


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "words"}}, "words"),
        ({"error": "words"}, "words"),
        ({"type": "error", "error": {"type": "t", "message": "words"}}, "words"),
        ({"object": "error", "message": "words", "code": 400}, "words"),
        ({"detail": "words"}, "words"),
        ({"detail": [{"msg": "words"}]}, "words"),
        ([{"error": {"code": 400, "message": "words"}}], "words"),
        ({"error": {"code": 7}}, '{"code": 7}'),
        (b"plain words", "plain words"),
        (b"", ""),
    ],
)
def test_the_servers_message_is_found_in_every_format(body: Any, message: str) -> None:
    assert classify(400, body) == Refusal(RefusalReason.REQUEST, message)


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    assert parse_response_json(b'{"text": "a\\ud83d!", "whole": "\\ud83d\\ude00"}') == {
        "text": "a?!",
        "whole": "\N{GRINNING FACE}",
    }


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000])
def test_invalid_json_is_none(body: bytes) -> None:
    assert parse_response_json(body) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_parsed_in_every_format(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert parse_retry_after(headers) == seconds


def test_a_transient_fault_carries_retry_after() -> None:
    fault = classify_response(503, {"retry-after": "2"}, b"")
    assert isinstance(fault, TransientFault) and fault.retry_after_s == 2.0
