"""`ludus runs`, `ludus show` and `ludus play`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from chat_stub import chat_stub
from ludus_process import LUDUS, run_ludus
from world import wait_until

from cli.collect_cli import (
    COUNTER,
    TESTS,
    collect,
    error_line,
    read_episodes,
    start_collect,
    stub_args,
)

MARKUP = "[bold]x[/bold] [/] [red"


def scripted_reply(request: dict[str, Any]) -> dict[str, Any]:
    """A reply that looks like markup of rich."""
    return {"content": MARKUP}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three runs: with costs, with a broken episode, with markup in its text."""
    root = tmp_path_factory.mktemp("runs")
    prices = root / "prices.json"
    prices.write_text('{"stub": {"input": 100, "output": 100}}')
    once = ("--concurrency", "1", "--max-attempts", "1", "--max-retries", "0")
    with chat_stub() as stub:
        collect(*stub_args(stub, "-n", "4", "--prices", prices, "-o", root / "paid"))
    with chat_stub(script=["reply", 500]) as stub:
        collect(*stub_args(stub, "-n", "3", *once, "-o", root / "some/broken"))
    with chat_stub(scripted_reply) as stub:
        collect(*stub_args(stub, "-n", "2", "--system-prompt", MARKUP, "-o", root / "talk"))
    return root


def test_runs_are_listed_with_counts_rewards_and_cost(root: Path) -> None:
    done = run_ludus("runs", ".", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows = (line.split() for line in done.stdout.splitlines())
    assert header[:7] == ["run", "kind", "environment", "agent", "episodes", "mean", "reward"]
    assert header[-3:] == ["broken", "tokens", "cost"]
    found = read_episodes(root / "paid")
    tokens = sum(episode.usage.total_tokens for episode in found)
    mean = sum(episode.reward or 0.0 for episode in found) / 4
    paid, broken, talk = rows
    assert paid[:6] == ["paid", "collect", COUNTER, "stub", "4", f"{mean:.3f}"]
    assert paid[-2:] == [f"{tokens:,}", f"${tokens / 10_000:.4f}"]
    assert broken[:5] == ["some/broken", "collect", COUNTER, "stub", "3"] and "1" in broken[5:]
    assert talk[0] == "talk"


def test_runs_as_json(root: Path) -> None:
    lines = run_ludus("runs", str(root), "--json").stdout.splitlines()
    facts = {Path(fact["run"]).name: fact for fact in map(json.loads, lines)}
    assert facts.keys() == {"paid", "broken", "talk"}
    assert (facts["paid"]["episodes"], facts["paid"]["complete"]) == (4, True)
    assert (facts["broken"]["scored"], facts["broken"]["broken"]) == (2, 1)
    assert facts["talk"]["stop_reasons"] == {"no_tool_call": 2}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two episodes that was made longer, and killed with -9 on the way to a hundred."""
    run = tmp_path_factory.mktemp("killed") / "run"
    with chat_stub() as stub:
        command = stub_args(stub, "--concurrency", "2", "-o", run)
        collect(*command, "-n", "2")
        stub.latency = 0.02
        with start_collect(*command, "-n", "100"):
            wait_until(lambda: (run / "episodes.jsonl").read_bytes().count(b"\n") > 6, seconds=30)
    assert json.loads((run / "summary.json").read_text())["episodes"] == 2
    return run


def test_a_killed_run_is_recounted(killed: Path) -> None:
    (line,) = run_ludus("runs", str(killed), "--json").stdout.splitlines()
    fact, recorded = json.loads(line), read_episodes(killed)
    assert fact["episodes"] == fact["scored"] == len(recorded) > 6
    mean = sum(episode.reward or 0.0 for episode in recorded) / len(recorded)
    assert fact["mean_reward"] == pytest.approx(mean)
    assert fact["usage"]["prompt_tokens"] == sum(e.usage.prompt_tokens for e in recorded)


def test_a_killed_run_is_not_taken_for_a_complete_one(killed: Path) -> None:
    (line,) = run_ludus("runs", str(killed), "--json").stdout.splitlines()
    fact = json.loads(line)
    assert (fact["planned"], fact["complete"]) == (100, False)


def test_no_runs_is_one_line(tmp_path: Path) -> None:
    assert "runs" in error_line(run_ludus("runs", cwd=tmp_path))
    assert str(tmp_path) in error_line(run_ludus("runs", str(tmp_path)))


def test_an_unreadable_run_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("empty", "good"):
        collect("catch", "-n", "1", "-o", tmp_path / name)
    for name in ("episodes.jsonl", "summary.json"):
        (tmp_path / "empty" / name).unlink()
    assert "good" in run_ludus("runs", str(tmp_path)).stdout


def test_an_episode_is_shown_by_number_by_id_and_first_by_default(root: Path) -> None:
    run, found = root / "paid", read_episodes(root / "paid")
    third = run_ludus("show", str(run), "3").stdout
    assert third.startswith(f"{found[3].episode_id}  {COUNTER} · seed {found[3].seed} · ")
    assert found[3].messages[1].text in third and 'add({"number": ' in third
    assert f"reward {found[3].reward:g} · done · {found[3].turns} turn" in third
    assert run_ludus("show", str(run), found[3].episode_id).stdout == third
    assert run_ludus("show", str(run)).stdout.startswith(found[0].episode_id)


def test_an_episode_is_shown_as_it_is_stored(root: Path) -> None:
    lines = (root / "paid/episodes.jsonl").read_text().splitlines(keepends=True)
    shown = run_ludus("show", str(root / "paid/episodes.jsonl"), "2", "--json").stdout
    assert shown in lines and json.loads(shown)["episode_id"].endswith("-000002")


def test_a_broken_episode_shows_what_broke_it(root: Path) -> None:
    (broken,) = (episode for episode in read_episodes(root / "some/broken") if episode.broken)
    shown = run_ludus("show", str(root / "some/broken"), broken.episode_id).stdout
    assert "unscored · broken" in shown
    assert all(part in shown for part in ("ModelBusy (model)", "http://127.0.0.1", "500"))


def test_square_brackets_are_not_taken_for_markup(root: Path) -> None:
    shown = [line.strip() for line in run_ludus("show", str(root / "talk")).stdout.splitlines()]
    assert shown.count(MARKUP) == 2, "the system prompt's and the model's"


def test_control_characters_of_a_model_are_escaped(tmp_path: Path) -> None:
    with chat_stub(lambda request: {"content": "\x1b]0;owned\x07\x1b[2J"}) as stub:
        collect(*stub_args(stub, "-n", "1", "-o", tmp_path / "run"))
    assert "\x1b" not in run_ludus("show", str(tmp_path / "run")).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("paid", "99"), "highest index is 3"),
        (("paid", "nobody"), "'nobody'"),
        (("some",), "`ludus show some/broken`"),
        (("nowhere",), "'nowhere'"),
        (("talks",), "'talk'"),
        (("runs/nowhere",), "runs/nowhere"),
    ],
)
def test_a_missing_episode_is_one_line(arguments: tuple[str, ...], words: str, root: Path) -> None:
    assert words in error_line(run_ludus("show", *arguments, cwd=root))


def play(typed: str) -> subprocess.CompletedProcess[str]:
    return run_ludus("play", COUNTER, "--task", '{"goal": 5}', typed=typed, cwd=TESTS)


def test_invalid_input_is_reported_and_play_continues() -> None:
    done = play("two\n-3\n2\n3\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "'two'" in done.stdout and "Only numbers above zero" in done.stdout
    assert "Total 5." in done.stdout and "Reward 1" in done.stdout.splitlines()[-1]


def test_play_can_be_left_before_the_end() -> None:
    done = play("2\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Total 2." in done.stdout and "Reward" not in done.stdout


def test_play_reads_input_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "moves").write_text("2\n3")
    with (tmp_path / "moves").open() as moves:
        done = subprocess.run(
            [*LUDUS, "play", COUNTER, "--task", '{"goal": 5}'],
            stdin=moves,
            capture_output=True,
            text=True,
            timeout=30,
            cwd=TESTS,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Reach 5." in done.stdout and "Reward 1" in done.stdout
