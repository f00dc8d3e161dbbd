"""Calls as text and as `tool_calls` render the same with the family's own chat template."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_tokenizers import of_family

from curation.attempts import GUESS, attempt, call, model, system, tool_result, user
from ludus.curation.tool_call_text import CALL_FORMATS
from ludus.curation.training_rows import RowConfig, sft_row
from ludus.data.messages import ImagePart, ImageUrl, Message, Text
from ludus.errors import ConfigError

TEMPLATES = {
    "qwen3": "qwen3",
    "qwen2.5": "qwen2_5",
    "qwen3.5": "qwen3_5_think",
    "llama3": "llama3_1",
    "glm4": "glm4moe",
}
THINKING = [name for name in TEMPLATES if name not in ("qwen2.5", "llama3")]
WORDY = [name for name in TEMPLATES if name != "llama3"]
"""Llama's template drops text beside a call, and refuses more than one call."""
RICH = {"word": "öwl \"'<&>", "n": 3, "x": 0.5, "deep": {"a": [1, None, True]}, "many": ["a", "b"]}


def both(family: str, *messages: Message) -> list[str]:
    """Render the row with calls and the row with text with the family's template."""
    tokenizer: Any = of_family(TEMPLATES[family])
    episode = attempt("e", tools=(GUESS,), messages=messages)
    return [
        str(
            tokenizer.apply_chat_template(
                sft_row(episode, form)["messages"], tools=[GUESS], tokenize=False
            )
        )
        for form in (RowConfig(), RowConfig(tool_call_format=family))
    ]


def one_call(arguments: dict[str, Any]) -> tuple[Message, ...]:
    messages = (system("Play."), user("Guess."))
    return (
        *messages,
        model("", call("guess", arguments, "x")),
        tool_result("no", "x"),
        model("It is elk."),
    )


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("arguments", [{"word": "owl"}, {}, RICH], ids=["one", "none", "rich"])
def test_a_call_and_its_result(family: str, arguments: dict[str, Any]) -> None:
    structured, text = both(family, *one_call(arguments))
    assert text == structured and "guess" in text


@pytest.mark.parametrize("family", WORDY)
def test_text_before_a_call(family: str) -> None:
    structured, text = both(family, user("Guess."), model("I try.", call("guess", {"word": "owl"})))
    assert text == structured and "I try." in text


@pytest.mark.parametrize("family", WORDY)
def test_parallel_calls_and_their_results(family: str) -> None:
    calls = [call("guess", {"word": word}, word) for word in ("owl", "elk")]
    answers = [tool_result(f"no {word}", word) for word in ("owl", "elk")]
    structured, text = both(family, user("Go."), model("Both.", *calls), *answers, model("Done."))
    assert text == structured and "no elk" in text


@pytest.mark.parametrize("family", THINKING)
def test_reasoning_with_text_and_with_a_call(family: str) -> None:
    thinking = model("I try.", call("guess", {"word": "owl"}), reasoning="Birds\n\nor not?")
    done = model("It is elk.", reasoning="No bird.")
    structured, text = both(family, user("Guess."), thinking, tool_result("no"), done)
    assert text == structured and "or not?" in text


@pytest.mark.parametrize("family", THINKING)
def test_reasoning_before_an_earlier_turn(family: str) -> None:
    first = model("Four.", reasoning="Two and two.")
    structured, text = both(
        family, user("2+2?"), first, user("3+3?"), model("Six.", reasoning="Easy.")
    )
    assert text == structured


@pytest.mark.parametrize("family", TEMPLATES)
def test_conversations_without_calls(family: str) -> None:
    structured, text = both(family, system("Be brief."), user("Hi"), model("Hello."))
    assert text == structured


def test_every_family_with_a_template_has_a_call_format() -> None:
    assert set(TEMPLATES) < set(CALL_FORMATS)


def test_a_user_message_like_a_tool_result_is_unchanged() -> None:
    tricky = user("<tool_response>\nmine\n</tool_response>")
    row = sft_row(attempt("e", messages=(tricky, model("a"))), RowConfig(tool_call_format="qwen3"))
    assert row["messages"][0] == {"role": "user", "content": tricky.content}


def test_braces_in_results_and_reasoning_are_text() -> None:
    messages = (
        user("q"),
        model("", call("f", "{}"), reasoning="{0} {x}"),
        tool_result('{"a": {}}'),
        model("b"),
    )
    rendered = sft_row(attempt("e", messages=messages), RowConfig(tool_call_format="qwen3"))[
        "messages"
    ]
    assert rendered[1]["content"].startswith("<think>\n{0} {x}\n</think>\n\n<tool_call>")
    assert rendered[2]["content"] == '<tool_response>\n{"a": {}}\n</tool_response>'


def test_text_parts_are_text_and_images_have_no_text_form() -> None:
    parts = (Text(text="one"), Text(text="two"))
    seen = Message(role="tool", content=parts, tool_call_id="x")
    rendered = sft_row(
        attempt("e", messages=(user("q"), model("a"), seen)), RowConfig(tool_call_format="hermes")
    )
    assert rendered["messages"][2]["content"] == "<tool_response>\none\ntwo\n</tool_response>"
    shown = Message(role="tool", content=(ImagePart(image_url=ImageUrl(url="https://x.org")),))
    with pytest.raises(ConfigError, match="tool_call_format"):
        sft_row(
            attempt("e", messages=(user("q"), model("a"), shown)),
            RowConfig(tool_call_format="hermes"),
        )
