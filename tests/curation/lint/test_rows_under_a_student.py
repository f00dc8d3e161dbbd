"""The checks that need a student's template: for each a row that fails it, and one that passes."""

from __future__ import annotations

from typing import Any

import pytest
from policy.conversations import ENDED, INSTRUCTED, PLAYED, TALK, TOOLS, answer, call, calling, said
from students import WORDS, student, template_of

from curation.lint.linting import under
from ludus.curation.lint.finding import ADVICE
from ludus.curation.lint.student import Student
from ludus.policy.chat.chat_format import FAMILIES

NO_END = WORDS.replace("<|my_end|>{% endgeneration %}", "{% endgeneration %}<|my_end|>")
OPEN_END = (
    "{% for m in messages %}<|my_start|>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}{% if not loop.last %}<|my_end|>{% endif %}{% endgeneration %}"
    "{% else %}{{ m.content }}<|my_end|>{% endif %}{% endfor %}"
)


def made(template: str) -> Student:
    return Student("made", student(template))


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_think", "glm4moe", "nemotron_3_nano"])
@pytest.mark.parametrize("row", [TALK, INSTRUCTED, ENDED])
def test_a_row_that_comes_out_whole_is_not_faulted(family: str, row: dict[str, Any]) -> None:
    assert under(family, row) == {}


def test_reasoning_before_the_last_question_is_dropped_by_some() -> None:
    assert under("qwen3", PLAYED) == {}
    assert under("qwen2_5", PLAYED) == {"drops-reasoning": "warning"}


@pytest.mark.parametrize("row", [PLAYED, {**PLAYED, "tools": None}])
def test_what_a_template_that_knows_only_words_drops(row: dict[str, Any]) -> None:
    found = under(made(WORDS), row)
    tools = {"drops-tools": "error"} if row["tools"] else {}
    assert found == {"drops-tool-calls": "error", "drops-reasoning": "warning", **tools}


def test_results_and_a_system_prompt_that_are_dropped() -> None:
    kept = "{% for message in messages if message.role in ('user', 'assistant') %}"
    found = under(made(WORDS.replace("{% for message in messages %}", kept)), PLAYED)
    assert found.items() >= {"drops-system-prompt": "error", "drops-tool-results": "error"}.items()
    assert "drops-user-text" not in found and "drops-assistant-text" not in found


def test_words_beside_a_call_that_are_dropped() -> None:
    silent = WORDS.replace("{{ message.content }}<|my_end|>{% endgen", "<|my_end|>{% endgen")
    unmarked = {"template-unmarked": "error"}
    assert under(made(silent), TALK) == {"drops-assistant-text": "warning", **unmarked}


def test_a_tools_answer_in_a_users_turn_does_not_mislead_the_search() -> None:
    """Qwen's templates look how a user's turn begins and ends to know where a question stands."""
    row = {
        "messages": [
            said("user", "Begin."),
            said("assistant", "Hm.", reasoning_content="Vowels first."),
            said("user", "<tool_response>\nno\n</tool_response>"),
            said("assistant", "Well.", reasoning_content="Consonants."),
        ]
    }
    assert under("qwen3", row) == {}


def test_a_template_that_refuses_a_row() -> None:
    assert under("cohere2", PLAYED) == {"template-refuses": "error"}
    assert under("cohere2", TALK) == {}


def test_a_template_that_cannot_mark_the_assistant() -> None:
    assert under("gemma4", TALK) == {"template-unmarked": "error"}
    assert all(family in ADVICE["template-unmarked"] for family in FAMILIES)


@pytest.mark.parametrize("row", [TALK, PLAYED, ENDED])
def test_a_family_that_is_known_is_rendered_as_it_will_be_trained(row: dict[str, Any]) -> None:
    assert under("llama3_1", row) == under("gemma3", row) == {}


def test_pairs_are_looked_at_under_the_same_template() -> None:
    row = {"prompt": TALK["messages"][:1], "chosen": TALK["messages"][1:2]}
    row["rejected"] = [said("assistant", "No idea.")]
    assert under("llama3_1", row) == {}
    assert under("gemma4", row) == {"template-unmarked": "error"}


def test_a_row_in_which_no_token_bears_the_loss() -> None:
    assert under("qwen3", {"messages": [said("user", "Hi.")]}) == {"no-loss": "error"}


def test_an_end_of_turn_that_is_not_trained() -> None:
    assert under(made(NO_END), TALK) == {"stop-token": "error"}
    assert under(made(OPEN_END), TALK) == {"stop-token": "warning"}
    assert under(made(WORDS), TALK) == {}


def test_an_end_of_turn_need_not_be_called_special() -> None:
    template = WORDS.replace("<|my_end|>", "<done>")
    tokenizer = student(template)
    assert under(Student("made", tokenizer), TALK) == {"template-unmarked": "error"}
    tokenizer.add_tokens(["<done>"])
    assert under(Student("made", tokenizer), TALK) == {}


def test_rows_that_are_too_long() -> None:
    assert under("llama3", TALK, max_length=1000) == {}
    assert under("llama3", TALK, max_length=40) == {"too-long": "warning"}
    assert under("llama3", TALK, max_length=10) == {"too-long": "warning", "cut-off": "error"}


def test_a_pair_of_which_nothing_is_left() -> None:
    row = {"prompt": TALK["messages"][:3], "chosen": TALK["messages"][3:]}
    row["rejected"] = [said("assistant", "No idea.")]
    assert under("llama3", row, max_length=10) == {"too-long": "warning", "cut-off": "error"}


def test_arguments_in_strings_that_the_template_quotes_again() -> None:
    def row(arguments: Any) -> dict[str, Any]:
        return {"messages": [said("user", "Go."), calling(call("guess", arguments)), answer("no")]}

    assert under("lfm2_2_5", row({"word": "a"})) == {}
    double = made(WORDS.replace("<|my_end|>{% endg",
        "{{ message.tool_calls | tojson if message.tool_calls }}<|my_end|>{% endg"))  # fmt: skip
    assert under(double, row('{"word": "a"}')) == {"quoted-arguments": "warning"}
    assert under("qwen3", row('{"word": "a"}')) == {}, "Qwen's writes a string as it is"


def test_parts_of_content_are_looked_for_too() -> None:
    parts = [{"type": "text", "text": "Look."}, {"type": "text", "text": "And say."}]
    row = {"messages": [{"role": "user", "content": parts}, said("assistant", "Done.")]}
    assert under("qwen3_5_think", row) == {}


@pytest.mark.parametrize("family", ["llama3_1", "llama3_2"])
def test_an_empty_list_of_tools_that_the_template_writes_about(family: str) -> None:
    unknown = made(template_of(family).replace("header_id", "head_id"))
    unmarked = {"template-unmarked": "error"}
    assert under(unknown, {**TALK, "tools": []}) == unmarked | {"empty-tools": "warning"}
    assert under(unknown, {**TALK, "tools": None}) == unmarked
    assert under(family, {**TALK, "tools": []}) == {}
    assert under("qwen3", {**TALK, "tools": []}) == {}


def test_tools_without_a_wrapper_are_taken_as_they_are() -> None:
    flat = [tool["function"] for tool in TOOLS]
    assert under("qwen3", {**ENDED, "tools": flat}) == {}
