"""The viewer's server: who may ask it, and what it answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.data.run_folder import RunFolder
from viewer.viewing import Viewed, make_episode, viewing, write_episodes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("first", "second")):
        settings = {"environment": "talk", "agent": {"model": "m", "temperature": number / 2}}
        RunFolder.create(tmp_path / "runs" / name, settings)
        write_episodes(
            tmp_path / "runs" / name, *(make_episode(each, f"word {each}") for each in range(3))
        )
    return tmp_path


@pytest.fixture
def viewed(folder: Path) -> Iterator[Viewed]:
    with viewing(folder / "runs") as viewed:
        viewed.wait_until_indexed()
        yield viewed


def test_only_the_address_with_the_token_is_answered(viewed: Viewed) -> None:
    status, page = viewed.request(viewed.address)
    assert status == 200 and "<div id=" in page
    root = viewed.address.rstrip("/").rpartition("/")[0]
    for path in ("/", "/api/state", "/x/api/state", "/assets/view.js", f"{'x' * 32}/"):
        assert viewed.request(f"{root}/{path.lstrip('/')}")[0] == 404
    assert viewed.request(viewed.address.rstrip("/"))[0] == 404


def test_other_hosts_and_origins_are_refused(viewed: Viewed) -> None:
    state = f"{viewed.address}api/state"
    assert viewed.request(state, {"Host": "localhost:1"})[0] == 200
    assert viewed.request(state, {"Host": "attacker.example"})[0] == 421
    assert viewed.request(state, {"Origin": "http://attacker.example"})[0] == 403
    assert viewed.request(state, {"Sec-Fetch-Site": "cross-site"})[0] == 403


def test_the_page_may_load_nothing_from_elsewhere(viewed: Viewed) -> None:
    import urllib.request

    with urllib.request.urlopen(viewed.address) as response:
        policy = response.headers["Content-Security-Policy"]
        assert response.headers["Referrer-Policy"] == "no-referrer"
    assert "default-src 'none'" in policy and "script-src 'self';" in policy


def test_entries_are_listed_with_their_figures(viewed: Viewed) -> None:
    entries = viewed.get("state")["entries"]
    assert [(each["key"], each["kind"], each["episodes"], each["reward"]) for each in entries] == [
        ("runs/first", "run", 3, 1.0),
        ("runs/second", "run", 3, 1.0),
    ]


def test_two_runs_are_compared_by_their_settings(viewed: Viewed) -> None:
    compared = viewed.get("compare", first="runs/first", second="runs/second")
    assert compared["differences"] == [
        {"setting": "agent.temperature", "first": "0", "second": "0.5"}
    ]


def test_a_run_that_starts_later_appears(viewed: Viewed, folder: Path) -> None:
    write_episodes(folder / "runs" / "third", make_episode(9, "late", reward=None))
    viewed.library.scan()
    viewed.wait_until_indexed()
    page = viewed.get("episodes", run="runs/third")
    assert [row["episode_id"] for row in page["rows"]] == ["0badcafe-000009"]
    assert page["rows"][0]["reward"] is None and page["stats"]["scored"] == 0


@pytest.mark.parametrize("name", ["episodes.jsonl", "run.json", "summary.json", "training.json"])
def test_a_pipe_with_the_name_of_a_file_does_not_stop_the_viewer(folder: Path, name: str) -> None:
    odd = folder / "runs" / "odd"
    RunFolder.create(odd, {"environment": "talk"})
    (odd / name).unlink(missing_ok=True)
    os.mkfifo(odd / name)
    with viewing(folder / "runs") as viewed:
        viewed.wait_until_indexed()
        assert len(viewed.get("episodes")["rows"]) == 6


def test_one_episode_comes_with_the_attempts_at_its_task(viewed: Viewed) -> None:
    detail = viewed.get("episode", run="runs/first", line=1)
    assert detail["episode"]["messages"][1]["content"] == "word 1"
    assert [each["line"] for each in detail["attempts"]] == [0, 1, 2]
    assert detail["advantages"] is None and not detail["has_tokens"]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("episodes", {"where": "reward >"}),
        ("episodes", {"sort": "nonsense"}),
        ("episodes", {"run": "runs/none"}),
        ("episodes", {"offset": "-1"}),
        ("episode", {"run": "runs/first", "line": "99"}),
        ("episode", {"run": "runs/first"}),
        ("entry", {"key": "../../etc"}),
        ("tokens", {"run": "runs/first", "line": "0"}),
        ("rows", {"dataset": "runs/first"}),
    ],
)
def test_a_bad_question_is_answered_with_one_sentence(
    viewed: Viewed, name: str, params: dict[str, str]
) -> None:
    query = "&".join(f"{key}={value}" for key, value in params.items()).replace(" ", "+")
    status, answer = viewed.request(f"{viewed.address}api/{name}?{query}")
    assert status == 400
    assert answer["detail"].endswith(".")


def test_advantages_are_those_of_the_group_and_step(folder: Path) -> None:
    run = folder / "models" / "grpo"
    for number, (step, reward) in enumerate([(1, 0.0), (1, 1.0), (2, 1.0), (2, 1.0)]):
        agent = {"provider": "hf", "model": "m", "step": step}
        write_episodes(run, make_episode(number, "x", reward=reward, agent=agent))
    record = {"kind": "grpo", "settings": {"credit": "episode"}}
    (run / "training.json").write_text(json.dumps(record))
    (run / "log.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 1.0}\n')
    with viewing(folder / "models") as viewed:
        viewed.wait_until_indexed()
        advantages = [
            viewed.get("episode", run="models/grpo", line=line)["advantages"] for line in range(4)
        ]
        curves = viewed.get("entry", key="models/grpo")["curves"]
    assert advantages[0][0] == pytest.approx(-0.5)
    assert advantages[1][0] == pytest.approx(0.5)
    assert advantages[2:] == [[0.0], [0.0]]
    assert {
        "key": "reward",
        "title": "Reward",
        "chart": "reward",
        "line": "",
        "x": "step",
        "is_schedule": False,
        "points": [[1, 0.5], [2, 1.0]],
    } in curves
