"""What is said in rollouts of NeMo Gym, in all the forms in which it writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from curation.importers.gym_lines import (
    TOOL,
    answered,
    called,
    episode,
    read,
    rollout,
    shape,
    spoken,
    system,
    thought,
    user,
)
from ludus.curation.importers.base import UnreadableRecord
from ludus.data.messages import ImagePart
from ludus.data.tool_schema import JsonObject


def test_a_line_of_the_examples_is_read_whole(tmp_path: Path) -> None:
    output = [thought("hm"), called("c1"), answered("c1"), spoken("An owl is a bird.")]
    asked = {"tools": [TOOL], "temperature": 0.6, "max_output_tokens": 512}
    line = rollout([system("Be brief."), user("Owl?")], output, asked=asked, expected_answer="bird")
    found = episode(tmp_path, line)
    assert shape(found) == [
        ("system", "Be brief.", None, None),
        ("user", "Owl?", None, None),
        ("assistant", "", "hm", ("c1",)),
        ("tool", "a bird", None, "c1"),
        ("assistant", "An owl is a bird.", None, None),
    ]
    assert found.messages[2].tool_calls
    assert found.messages[2].tool_calls[0].function.arguments == '{"word": "owl"}'
    assert (found.reward, found.done, found.environment) == (1.0, True, "words_agent")
    assert found.tools[0]["function"]["name"] == "look_up"
    assert found.task == {"expected_answer": "bird", "_ng_task_index": 0}
    assert found.agent["model"] == "policy_model"
    assert (found.agent["temperature"], found.agent["max_tokens"]) == (0.6, 512)
    used = found.usage
    assert (used.prompt_tokens, used.completion_tokens) == (40, 20)
    assert (used.cached_tokens, used.reasoning_tokens) == (8, 5)


def test_an_input_may_be_a_string(tmp_path: Path) -> None:
    found = episode(tmp_path, rollout("Owl?", [spoken("A bird.")]))
    assert [message.role for message in found.messages] == ["user", "assistant"]


def test_instructions_and_developers_become_system_messages(tmp_path: Path) -> None:
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "Rhyme."}]}
    line = rollout([developer, user("Owl?")], [spoken("Fowl.")], asked={"instructions": "Be kind."})
    assert [(m.role, m.content) for m in episode(tmp_path, line).messages[:2]] == [
        ("system", "Be kind."),
        ("system", "Rhyme."),
    ]


def test_parallel_calls_are_one_reply_and_keep_their_words(tmp_path: Path) -> None:
    output = [spoken("Both."), called("a"), called("b"), answered("a"), answered("b")]
    found = episode(tmp_path, rollout("Owl, fowl?", output))
    assert shape(found)[1:] == [
        ("assistant", "Both.", None, ("a", "b")),
        ("tool", "a bird", None, "a"),
        ("tool", "a bird", None, "b"),
    ]


def test_calls_without_an_answer_stay(tmp_path: Path) -> None:
    found = episode(tmp_path, rollout("Owl?", [called("a"), called("b"), answered("b")]))
    assert shape(found)[1][3] == ("a", "b")
    assert found.tool_calls == 2


def test_arguments_that_are_no_json_are_kept_as_they_were_written(tmp_path: Path) -> None:
    found = episode(tmp_path, rollout("Owl?", [{**called("a"), "arguments": '{"word": '}]))
    assert found.messages[1].tool_calls
    assert found.messages[1].tool_calls[0].function.arguments == '{"word": '
    assert found.malformed_calls == 1


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "reasoning", "summary": [], "content": [{"text": "deep"}]}, "deep"),
        ({"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}]}, "a\n\nb"),
    ],
)
def test_thoughts_belong_to_the_reply_that_follows(
    tmp_path: Path, item: JsonObject, words: str
) -> None:
    found = episode(tmp_path, rollout("Owl?", [item, spoken("Bird.")]))
    assert shape(found)[1:] == [("assistant", "Bird.", words, None)]


def test_thoughts_without_a_reply_are_a_message_of_their_own(tmp_path: Path) -> None:
    found = episode(tmp_path, rollout("Owl?", [called("a"), answered("a"), thought("on and on")]))
    assert shape(found)[-1] == ("assistant", "", "on and on", None)


def test_thoughts_that_nobody_may_read_make_no_message(tmp_path: Path) -> None:
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    found = episode(tmp_path, rollout("Owl?", [hidden, user("Well?"), hidden]))
    assert [message.role for message in found.messages] == ["user", "user"]


def test_users_who_go_on_talking_stand_in_the_output(tmp_path: Path) -> None:
    output = [spoken("Which one?"), user("The barn owl."), thought("ah"), spoken("White.")]
    assert shape(episode(tmp_path, rollout([system("You know owls.")], output))) == [
        ("system", "You know owls.", None, None),
        ("assistant", "Which one?", None, None),
        ("user", "The barn owl.", None, None),
        ("assistant", "White.", "ah", None),
    ]


def test_turns_before_the_prompt_are_kept(tmp_path: Path) -> None:
    earlier = [user("Owl?"), thought("x"), called("a"), answered("a"), spoken("A bird.")]
    found = episode(tmp_path, rollout([*earlier, user("And a fowl?")], [spoken("Too.")]))
    roles = ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [m.role for m in found.messages] == roles
    assert found.messages[1].reasoning_content == "x"


def test_pictures_keep_their_place(tmp_path: Path) -> None:
    shown = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_image", "image_url": {"url": "https://example.org/owl.png"}},
    ]
    output = [called("a"), answered("a", [shown[1]]), spoken("An owl.")]
    found = episode(tmp_path, rollout([{"role": "user", "content": shown}], output))
    content = found.messages[0].content
    assert [part.image_url.url for part in content[1:] if isinstance(part, ImagePart)] == [
        "data:image/png;base64,AA==",
        "https://example.org/owl.png",
    ]
    assert isinstance(found.messages[2].content[0], ImagePart)


def test_transitions_that_repeat_the_history_are_one_conversation(tmp_path: Path) -> None:
    seen = user("You see a door.")
    first = [user("Escape."), seen, called("a"), answered("a", "open")]
    second = [*first, called("b"), answered("b", "out")]
    line = rollout([user("Escape.")], [first, second], replied={"contains_transitions": True})
    assert [entry[3] for entry in shape(episode(tmp_path, line))] == [
        *(None, None),
        *(("a",), "a"),
        *(("b",), "b"),
    ]


def test_a_state_that_was_hidden_later_is_kept_as_the_model_first_saw_it(tmp_path: Path) -> None:
    first = [user("You see a door."), called("a"), answered("a"), user("You see a hall.")]
    hidden = [user("[hidden]"), *first[1:3], user("[hidden]"), called("b"), answered("b")]
    found = episode(tmp_path, rollout([], [first, hidden]))
    assert [m.text for m in found.messages if m.role == "user"] == [
        "You see a door.",
        "You see a hall.",
    ]
    assert found.turns == 2


def test_transitions_that_do_not_repeat_anything_follow_each_other(tmp_path: Path) -> None:
    parts = [[spoken("North."), user("A wall.")], [spoken("South."), user("Out!")]]
    assert [entry[1] for entry in shape(episode(tmp_path, rollout("Escape.", parts)))] == [
        *("Escape.", "North.", "A wall."),
        *("South.", "Out!"),
    ]


def test_what_an_environment_showed_first_is_put_before_the_output(tmp_path: Path) -> None:
    line = rollout([], [spoken("[up]")], replied={"seed_obs": [user("A frozen lake.")]})
    assert [m.text for m in episode(tmp_path, line).messages] == ["A frozen lake.", "[up]"]


def test_an_output_may_stand_at_the_top(tmp_path: Path) -> None:
    line = {"responses_create_params": {"input": [user("Owl?")]}, "output": [spoken("A bird.")]}
    found = episode(tmp_path, {**line, "reward": 1.0})
    assert [m.text for m in found.messages] == ["Owl?", "A bird."]
    assert found.environment == "nemo_gym"


def test_tools_that_only_the_environment_knew_are_found_in_the_response(tmp_path: Path) -> None:
    found = episode(tmp_path, rollout([], [spoken("x")], replied={"tools": [TOOL]}))
    assert [tool["function"]["name"] for tool in found.tools] == ["look_up"]


def test_tools_that_the_provider_ran_are_calls_with_their_answers(tmp_path: Path) -> None:
    hosted = {"type": "mcp_call", "id": "m1", "name": "python", "arguments": "{}", "output": "4"}
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"}
    listed = {"type": "custom_tool_call_output", "call_id": "c1", "output": "a.txt"}
    output = [thought("hm"), hosted, custom, listed, spoken("Done.")]
    assert shape(episode(tmp_path, rollout("2+2?", output)))[1:] == [
        ("assistant", "", "hm", ("m1",)),
        ("tool", "4", None, "m1"),
        ("assistant", "", None, ("c1",)),
        ("tool", "a.txt", None, "c1"),
        ("assistant", "Done.", None, None),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"responses_create_params": {"input": "x"}}', "no rollout"),
        ('{"response": {"output": 3}}', "output is not a list"),
        ('{"response": {"output": [3]}}', "an item of output is a number"),
        ('{"response": {"output": [{"type": "web_search_call"}]}}', "'web_search_call'"),
        ('{"response": {"output": []}, "reward": "good"}', "reward is a string"),
        ('{"response": {"output": [{"role": "nobody", "content": ""}]}}', "role"),
    ],
)
def test_a_line_that_is_no_rollout_is_named_and_costs_no_other(
    tmp_path: Path, line: str, why: str
) -> None:
    good, bad, too = read(tmp_path, rollout("a", []), line, rollout("b", []))
    assert isinstance(bad, UnreadableRecord)
    assert (bad.path, bad.line) == (tmp_path / "rollouts.jsonl", 2)
    assert why in bad.reason
    assert not isinstance(good, UnreadableRecord) and not isinstance(too, UnreadableRecord)
