"""Messages of NeMo Gym rollouts, in all variants."""

from __future__ import annotations

from pathlib import Path

import pytest

from curation.formats.gym_lines import (
    TOOL,
    call_item,
    import_rollout,
    message_item,
    output_item,
    read,
    reasoning_item,
    rollout,
    shape,
    system,
    user,
)
from ludus.curation.formats.base import UnreadableRecord
from ludus.data.messages import ImagePart
from ludus.data.tool_schema import JsonObject


def test_a_rollout_of_the_examples(tmp_path: Path) -> None:
    output = [
        reasoning_item("hm"),
        call_item("c1"),
        output_item("c1"),
        message_item("An owl is a bird."),
    ]
    asked = {"tools": [TOOL], "temperature": 0.6, "max_output_tokens": 512}
    line = rollout([system("Be brief."), user("Owl?")], output, asked=asked, expected_answer="bird")
    episode = import_rollout(tmp_path, line)
    assert shape(episode) == [
        ("system", "Be brief.", None, None),
        ("user", "Owl?", None, None),
        ("assistant", "", "hm", ("c1",)),
        ("tool", "a bird", None, "c1"),
        ("assistant", "An owl is a bird.", None, None),
    ]
    assert episode.messages[2].tool_calls
    assert episode.messages[2].tool_calls[0].function.arguments == '{"word": "owl"}'
    assert (episode.reward, episode.done, episode.environment) == (1.0, True, "words_agent")
    assert episode.tools[0]["function"]["name"] == "look_up"
    assert episode.task == {"expected_answer": "bird", "_ng_task_index": 0}
    assert episode.agent["model"] == "policy_model"
    assert (episode.agent["temperature"], episode.agent["max_tokens"]) == (0.6, 512)
    used = episode.usage
    assert (used.prompt_tokens, used.completion_tokens) == (40, 20)
    assert (used.cached_tokens, used.reasoning_tokens) == (8, 5)


def test_an_input_may_be_a_string(tmp_path: Path) -> None:
    episode = import_rollout(tmp_path, rollout("Owl?", [message_item("A bird.")]))
    assert [message.role for message in episode.messages] == ["user", "assistant"]


def test_instructions_and_developers_become_system_messages(tmp_path: Path) -> None:
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "Rhyme."}]}
    line = rollout(
        [developer, user("Owl?")], [message_item("Fowl.")], asked={"instructions": "Be kind."}
    )
    assert [(m.role, m.content) for m in import_rollout(tmp_path, line).messages[:2]] == [
        ("system", "Be kind."),
        ("system", "Rhyme."),
    ]


def test_parallel_calls_are_one_reply(tmp_path: Path) -> None:
    output = [
        message_item("Both."),
        call_item("a"),
        call_item("b"),
        output_item("a"),
        output_item("b"),
    ]
    episode = import_rollout(tmp_path, rollout("Owl, fowl?", output))
    assert shape(episode)[1:] == [
        ("assistant", "Both.", None, ("a", "b")),
        ("tool", "a bird", None, "a"),
        ("tool", "a bird", None, "b"),
    ]


def test_calls_without_a_result_are_kept(tmp_path: Path) -> None:
    episode = import_rollout(
        tmp_path, rollout("Owl?", [call_item("a"), call_item("b"), output_item("b")])
    )
    assert shape(episode)[1][3] == ("a", "b")
    assert episode.tool_calls == 2


def test_malformed_arguments_are_kept(tmp_path: Path) -> None:
    episode = import_rollout(
        tmp_path, rollout("Owl?", [{**call_item("a"), "arguments": '{"word": '}])
    )
    assert episode.messages[1].tool_calls
    assert episode.messages[1].tool_calls[0].function.arguments == '{"word": '
    assert episode.malformed_calls == 1


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "reasoning", "summary": [], "content": [{"text": "deep"}]}, "deep"),
        ({"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}]}, "a\n\nb"),
    ],
)
def test_reasoning_belongs_to_the_following_reply(
    tmp_path: Path, item: JsonObject, words: str
) -> None:
    episode = import_rollout(tmp_path, rollout("Owl?", [item, message_item("Bird.")]))
    assert shape(episode)[1:] == [("assistant", "Bird.", words, None)]


def test_reasoning_without_a_reply_is_a_message(tmp_path: Path) -> None:
    episode = import_rollout(
        tmp_path, rollout("Owl?", [call_item("a"), output_item("a"), reasoning_item("on and on")])
    )
    assert shape(episode)[-1] == ("assistant", "", "on and on", None)


def test_encrypted_reasoning_is_no_message(tmp_path: Path) -> None:
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    episode = import_rollout(tmp_path, rollout("Owl?", [hidden, user("Well?"), hidden]))
    assert [message.role for message in episode.messages] == ["user", "user"]


def test_user_messages_in_the_output(tmp_path: Path) -> None:
    output = [
        message_item("Which one?"),
        user("The barn owl."),
        reasoning_item("ah"),
        message_item("White."),
    ]
    assert shape(import_rollout(tmp_path, rollout([system("You know owls.")], output))) == [
        ("system", "You know owls.", None, None),
        ("assistant", "Which one?", None, None),
        ("user", "The barn owl.", None, None),
        ("assistant", "White.", "ah", None),
    ]


def test_earlier_turns_in_the_input_are_kept(tmp_path: Path) -> None:
    earlier = [
        user("Owl?"),
        reasoning_item("x"),
        call_item("a"),
        output_item("a"),
        message_item("A bird."),
    ]
    episode = import_rollout(
        tmp_path, rollout([*earlier, user("And a fowl?")], [message_item("Too.")])
    )
    roles = ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [m.role for m in episode.messages] == roles
    assert episode.messages[1].reasoning_content == "x"


def test_images_keep_their_position(tmp_path: Path) -> None:
    shown = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_image", "image_url": {"url": "https://example.org/owl.png"}},
    ]
    output = [call_item("a"), output_item("a", [shown[1]]), message_item("An owl.")]
    episode = import_rollout(tmp_path, rollout([{"role": "user", "content": shown}], output))
    content = episode.messages[0].content
    assert [part.image_url.url for part in content[1:] if isinstance(part, ImagePart)] == [
        "data:image/png;base64,AA==",
        "https://example.org/owl.png",
    ]
    assert isinstance(episode.messages[2].content[0], ImagePart)


def test_the_last_transition_is_the_whole_conversation(tmp_path: Path) -> None:
    seen = user("You see a door.")
    first = [user("Escape."), seen, call_item("a"), output_item("a", "open")]
    second = [*first, call_item("b"), output_item("b", "out")]
    line = rollout([user("Escape.")], [first, second], replied={"contains_transitions": True})
    assert [entry[3] for entry in shape(import_rollout(tmp_path, line))] == [
        *(None, None),
        *(("a",), "a"),
        *(("b",), "b"),
    ]


def test_outputs_without_repetition_are_concatenated(tmp_path: Path) -> None:
    parts = [[message_item("North."), user("A wall.")], [message_item("South."), user("Out!")]]
    assert [entry[1] for entry in shape(import_rollout(tmp_path, rollout("Escape.", parts)))] == [
        *("Escape.", "North.", "A wall."),
        *("South.", "Out!"),
    ]


def test_seed_observations_precede_the_output(tmp_path: Path) -> None:
    line = rollout([], [message_item("[up]")], replied={"seed_obs": [user("A frozen lake.")]})
    assert [m.text for m in import_rollout(tmp_path, line).messages] == ["A frozen lake.", "[up]"]


def test_an_output_at_the_top_level(tmp_path: Path) -> None:
    line = {
        "responses_create_params": {"input": [user("Owl?")]},
        "output": [message_item("A bird.")],
    }
    episode = import_rollout(tmp_path, {**line, "reward": 1.0})
    assert [m.text for m in episode.messages] == ["Owl?", "A bird."]
    assert episode.environment == "nemo_gym"


def test_tools_of_the_response(tmp_path: Path) -> None:
    episode = import_rollout(tmp_path, rollout([], [message_item("x")], replied={"tools": [TOOL]}))
    assert [tool["function"]["name"] for tool in episode.tools] == ["look_up"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"responses_create_params": {"input": "x"}}', "not a rollout"),
        ('{"response": {"output": 3}}', "output is not a list"),
        ('{"response": {"output": [3]}}', "an item of output is not a JSON object"),
        ('{"response": {"output": [{"type": "web_search_call"}]}}', "'web_search_call'"),
        ('{"response": {"output": [{"type": ["message"]}]}}', "is not a name"),
        ('{"response": {"output": [{"role": "assistant", "type": {}}]}}', "is not a name"),
        ('{"response": {"output": [{"type": "reasoning", "content": 3}]}}', "is not a list"),
        ('{"response": {"output": [{"type": "reasoning", "summary": "x"}]}}', "is not a list"),
        ('{"response": {"output": []}, "reward": "good"}', "reward is not a number"),
        ('{"response": {"output": [{"role": "nobody", "content": ""}]}}', "role"),
    ],
)
def test_unreadable_lines_do_not_affect_others(tmp_path: Path, line: str, why: str) -> None:
    good, bad, too = read(tmp_path, rollout("a", []), line, rollout("b", []))
    assert isinstance(bad, UnreadableRecord)
    assert (bad.path, bad.line) == (tmp_path / "rollouts.jsonl", 2)
    assert why in bad.reason
    assert not isinstance(good, UnreadableRecord) and not isinstance(too, UnreadableRecord)
