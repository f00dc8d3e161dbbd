"""The dataset card of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard

from ludus.data.episode import Episode
from ludus.data.hub import COLUMNS
from ludus.publish.run_card import card_for_run, render_run_card
from publish.sample_episodes import SETTINGS, SUMMARY, episode, run_folder


def front(card: str) -> dict[str, Any]:
    """As the Hub reads it."""
    return vars(DatasetCard(card).data)


def test_front_matter_has_files_and_size() -> None:
    metadata = front(render_run_card(SETTINGS, {**SUMMARY, "episodes": 12_000}))
    assert {"reasoning_gym:chain_sum", "gpt-5-mini"} <= {*metadata["pretty_name"].split()}
    assert {"ludus", "openenv"} <= set(metadata["tags"])
    assert metadata["size_categories"] == ["10K<n<100K"]
    files = [{"split": "train", "path": "episodes.jsonl"}]
    assert metadata["configs"] == [{"config_name": "default", "data_files": files}]


def test_special_characters_in_names_are_escaped() -> None:
    name = 'a: "b" #c\n---\n{x} 😀 \x00\x85\ufeff ``d`` | e'
    settings = {"environment": name, "agent": {"model": name}}
    card = render_run_card(settings, SUMMARY, repo_id="a/b")
    shown = 'a: "b" #c --- {x} 😀 ``d`` | e'
    assert front(card)["pretty_name"].count(shown) == 2
    assert "| ``` " + shown.replace("|", "\\|") + " ``` |" in card


def test_body_has_facts_usage_and_command() -> None:
    card = render_run_card(SETTINGS, SUMMARY, repo_id="ada/sums", command="ludus collect x")
    for line in (
        "3 episodes ",
        "| `gpt-5-mini`, openai, temperature `0.7` |",
        "| 0.750 |",
        "| 12,345 in, 678 out |",
        "| $0.12 |",
        "| `done` | 2 |\n| `broken` | 1 |",
        "unscored",
        'load_dataset("ada/sums", split="train")',
        'episode["reward"] == 1.0',
        "```bash\nludus collect x\n```",
    ):
        assert line in card


def test_code_fence_is_longer_than_its_content() -> None:
    card = render_run_card(SETTINGS, SUMMARY, command="ludus --system-prompt 'Answer.\n```\n'")
    assert "````bash\n" in card and "\n````\n" in card


def test_unknown_facts_are_left_out() -> None:
    card = render_run_card({}, {})
    assert front(card)["pretty_name"]
    assert "None" not in card and "unscored:" not in card and "| --- | --- |\n\n" not in card


def test_columns_equal_the_fields_of_an_episode() -> None:
    assert [column.name for column in COLUMNS] == list(Episode.model_fields)


def test_own_readme_is_kept(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, episode(1))
    own = folder / "README.md"
    own.write_text("---\nlicense: mit\n---\n# Mine\n")
    assert card_for_run(folder, "a/b") == own.read_text()
    own.write_text("# Mine\n")
    card = card_for_run(folder, "a/b")
    assert card.endswith("---\n\n# Mine\n") and front(card)["configs"]
    assert own.read_text() == "# Mine\n"
