"""A call as text and as a call come out of a family's own chat template the same."""

from __future__ import annotations

from typing import Any

import pytest
from students import of_family

from curation.attempts import GUESS, attempt, call, model, system, told, user
from ludus.curation import RowConfig
from ludus.curation.tool_call_text import CALL_FORMATS
from ludus.curation.training_rows import sft_row
from ludus.data.content import Text
from ludus.data.messages import ImagePart, ImageUrl, Message
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
"""Llama's template drops what is said beside a call, and refuses more than one call."""
RICH = {"word": "öwl \"'<&>", "n": 3, "x": 0.5, "deep": {"a": [1, None, True]}, "many": ["a", "b"]}


def both(family: str, *messages: Message) -> list[str]:
    """The family's template over the row with calls, and over the row with text."""
    tokenizer: Any = of_family(TEMPLATES[family])
    episode = attempt("e", tools=(GUESS,), messages=messages)
    return [
        str(
            tokenizer.apply_chat_template(
                sft_row(episode, form)["messages"], tools=[GUESS], tokenize=False
            )
        )
        for form in (RowConfig(), RowConfig(render=family))
    ]


def one_call(arguments: dict[str, Any]) -> tuple[Message, ...]:
    said = (system("Play."), user("Guess."))
    return *said, model("", call("guess", arguments, "x")), told("no", "x"), model("It is elk.")


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("arguments", [{"word": "owl"}, {}, RICH], ids=["one", "none", "rich"])
def test_a_call_and_its_answer(family: str, arguments: dict[str, Any]) -> None:
    structured, text = both(family, *one_call(arguments))
    assert text == structured and "guess" in text


@pytest.mark.parametrize("family", WORDY)
def test_words_before_a_call(family: str) -> None:
    structured, text = both(family, user("Guess."), model("I try.", call("guess", {"word": "owl"})))
    assert text == structured and "I try." in text


@pytest.mark.parametrize("family", WORDY)
def test_several_calls_at_once_and_their_answers(family: str) -> None:
    calls = [call("guess", {"word": word}, word) for word in ("owl", "elk")]
    answers = [told(f"no {word}", word) for word in ("owl", "elk")]
    structured, text = both(family, user("Go."), model("Both.", *calls), *answers, model("Done."))
    assert text == structured and "no elk" in text


@pytest.mark.parametrize("family", THINKING)
def test_thoughts_with_words_and_with_a_call(family: str) -> None:
    thinking = model("I try.", call("guess", {"word": "owl"}), thought="Birds\n\nor not?")
    done = model("It is elk.", thought="No bird.")
    structured, text = both(family, user("Guess."), thinking, told("no"), done)
    assert text == structured and "or not?" in text


@pytest.mark.parametrize("family", THINKING)
def test_thoughts_of_an_earlier_question(family: str) -> None:
    first = model("Four.", thought="Two and two.")
    structured, text = both(
        family, user("2+2?"), first, user("3+3?"), model("Six.", thought="Easy.")
    )
    assert text == structured


@pytest.mark.parametrize("family", TEMPLATES)
def test_talk_without_calls_stays_as_it_is(family: str) -> None:
    structured, text = both(family, system("Be brief."), user("Hi"), model("Hello."))
    assert text == structured


def test_every_family_writes_calls_and_all_of_those_with_tags_the_same() -> None:
    assert set(TEMPLATES) < set(CALL_FORMATS)
    assert CALL_FORMATS["hermes"] == CALL_FORMATS["smollm"] == CALL_FORMATS["qwen3"]


def test_a_user_who_writes_as_tools_do_is_left_alone() -> None:
    tricky = user("<tool_response>\nmine\n</tool_response>")
    row = sft_row(attempt("e", messages=(tricky, model("a"))), RowConfig(render="qwen3"))
    assert row["messages"][0] == {"role": "user", "content": tricky.content}


def test_braces_in_an_answer_or_a_thought_are_words() -> None:
    said = (user("q"), model("", call("f", "{}"), thought="{0} {x}"), told('{"a": {}}'), model("b"))
    made = sft_row(attempt("e", messages=said), RowConfig(render="qwen3"))["messages"]
    assert made[1]["content"].startswith("<think>\n{0} {x}\n</think>\n\n<tool_call>")
    assert made[2]["content"] == '<tool_response>\n{"a": {}}\n</tool_response>'


def test_a_list_of_texts_is_text_and_a_picture_has_no_text_form() -> None:
    parts = (Text(text="one"), Text(text="two"))
    seen = Message(role="tool", content=parts, tool_call_id="x")
    made = sft_row(attempt("e", messages=(user("q"), model("a"), seen)), RowConfig(render="hermes"))
    assert made["messages"][2]["content"] == "<tool_response>\none\ntwo\n</tool_response>"
    shown = Message(role="tool", content=(ImagePart(image_url=ImageUrl(url="https://x.org")),))
    with pytest.raises(ConfigError, match="A picture has no text form"):
        sft_row(attempt("e", messages=(user("q"), model("a"), shown)), RowConfig(render="hermes"))
