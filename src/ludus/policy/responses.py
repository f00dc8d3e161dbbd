"""How families write their replies, so that they can be read: transformers' `response_template`s.

Data alone. What applies it is `ludus.policy.reading`; which of them fits a model's template is
found by trying (`ludus.policy.proof`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FUNCTION = {"type": "function", "function": "{content}"}
_NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def _response(anchor: str, end: str, **fields: Mapping[str, Any]) -> dict[str, Any]:
    """A reply begins after `anchor` and its words go on until `end` (patterns)."""
    words = {"close_pattern": rf"(?:{end})\s*", "content": "text"}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor_pattern": anchor,
        "fields": {**fields, "content": words},
    }


def _part(opening: str, closing: str) -> dict[str, Any]:
    return {"open_pattern": opening, "close_pattern": rf"(?:{closing})\s*", "content": "text"}


def _calls(opening: str, closing: str, content: str = "json", **more: Any) -> dict[str, Any]:
    return {
        "open_pattern": opening,
        "close_pattern": closing,
        "repeats": True,
        "content": content,
        "transform": _NAMED,
        **more,
    }


def _elements(pattern: str) -> dict[str, Any]:
    """Arguments written one by one as text: the tool's schema says which are no strings."""
    return {
        "content": "xml-inline",
        "content_args": {"tag_pattern": pattern, "value_parser": {"name": "text"}},
    }


_THOUGHT = _part("<think>", "</think>")
# Its beginning may stand in the prompt already.
_PREFILLED = _part(r"(?:<think>)?(?=.*?</think>)", "</think>")
_TAGGED = _calls(r"<tool_call>", r"</tool_call>\s*", transform=_FUNCTION)
# Tokens of a role may swallow the line break behind them.
_CHATML, _IM_END = r"<\|im_start\|>assistant\s*", r"<\|im_end\|>"
_PARAMETERS = _calls(
    r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    r"</tool_call>\s*",
    **_elements(r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"),
)
_BARE = r'(?:<\|python_tag\|>)?\{\s*(?:"type":\s*"function",\s*)?"name":\s*"'

RESPONSES: dict[str, dict[str, Any]] = {
    "chatml": _response(_CHATML, _IM_END, reasoning_content=_THOUGHT, tool_calls=_TAGGED),
    "llama3": _response(
        r"<\|start_header_id\|>assistant<\|end_header_id\|>\s*",
        r"<\|eot_id\|>|<\|eom_id\|>",
        reasoning_content=_THOUGHT,
        tool_calls=_calls(
            rf'{_BARE}(?P<name>[^"]*)",\s*"(?:parameters|arguments)":\s*',
            rf"\}}(?=[\s;]*(?:{_BARE}|<\|eot_id\|>|<\|eom_id\|>|$))[\s;]*",
        ),
    ),
    "gemma": _response(
        r"<start_of_turn>model\s*", "<end_of_turn>", reasoning_content=_THOUGHT, tool_calls=_TAGGED
    ),
    "phi": _response(
        r"<\|assistant\|>\s*", r"<\|end\|>", reasoning_content=_THOUGHT, tool_calls=_TAGGED
    ),
    "mistral": _response(
        r"\[/INST\]|\[/TOOL_RESULTS\]",
        "</s>",
        reasoning_content=_THOUGHT,
        tool_calls=_calls(
            r"\[TOOL_CALLS\]\s*",
            r"\s*</s>",
            transform={
                "type": "function",
                "function": {"name": "{name}", "arguments": "{arguments}"},
            },
            transform_each=True,
        ),
    ),
    "qwen3_5": _response(_CHATML, _IM_END, reasoning_content=_THOUGHT, tool_calls=_PARAMETERS),
    "nemotron": _response(
        rf"{_CHATML}<think>(?:\n|</think>)?",
        _IM_END,
        reasoning_content=_PREFILLED,
        tool_calls=_PARAMETERS,
    ),
    "glm4moe": _response(
        r"<\|assistant\|>",
        r"<\|user\|>|<\|observation\|>|$",
        reasoning_content=_THOUGHT,
        tool_calls=_calls(
            r"<tool_call>(?P<name>[^\s<]+)\n?",
            r"</tool_call>\s*",
            **_elements(
                r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"
            ),
        ),
    ),
    "lfm2": _response(
        _CHATML,
        _IM_END,
        thinking=_THOUGHT,
        # No parser of transformers' reads these: as text they are `ludus.policy.pythonic`'s.
        tool_calls={**_part(r"<\|tool_call_start\|>", r"<\|tool_call_end\|>"), "repeats": True},
    ),
    "gptoss": {
        **_response(r"<\|start\|>assistant", ""),
        "fields": {
            "thinking": _part(r"<\|channel\|>analysis<\|message\|>", r"<\|end\|>"),
            "content": _part(
                r"<\|channel\|>(?:final|commentary)<\|message\|>", r"<\|return\|>|<\|end\|>"
            ),
            # The channel may be named before the tool or after it.
            "tool_calls": _calls(
                r"(?:<\|channel\|>\w+ )?to=functions\.(?P<name>[^\s<]+)\s*"
                r"(?:<\|channel\|>\w+)?[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>",
                r"<\|call\|>\s*",
            ),
        },
    },
    "muse": {
        **_response(r"<\|start\|>assistant", ""),
        "fields": {
            "content": _part(r"to=user<\|message\|>", r"<\|eot\|>"),
            "tool_calls": _calls(
                r'<atem:invoke name="(?P<name>[^"]+)">',
                r"</atem:invoke>\s*",
                **_elements(
                    r'<atem:parameter name="(?P<key>[^"]+)">(?P<value>.*?)</atem:parameter>'
                ),
            ),
        },
    },
    "deepseek": _response(
        r"<｜Assistant｜>(?:<think>\s*)?",  # noqa: RUF001
        "<｜end▁of▁sentence｜>",  # noqa: RUF001
        reasoning_content=_PREFILLED,
    ),
    "cohere": _response(r"<\|CHATBOT_TOKEN\|>(?:<\|START_RESPONSE\|>)?", r"<\|END_RESPONSE\|>"),
    "words": _response(r"\Z", r"\Z"),
}
"""By the family whose replies they read."""
