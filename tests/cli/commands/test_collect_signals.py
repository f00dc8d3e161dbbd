"""Ctrl-C and SIGTERM during `ludus collect`, and its display on a terminal."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from chat_stub import chat_stub
from ludus_process import run_on_terminal
from world import wait_until

from cli.collect_cli import (
    CLEAN_ENV,
    collect,
    episode_indexes,
    read_episodes,
    read_summary,
    start_collect,
    stub_args,
)

HANGING_REPLIES = ["reply"] * 12 + ["hang"] * 1000
"""A few replies, and then the stub hangs."""


def test_ctrl_c_finishes_active_episodes_and_the_same_command_resumes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with chat_stub(latency=0.05) as stub:
        command = stub_args(stub, "-n", "60", "--concurrency", "4", "-o", run)
        with start_collect(*command) as process:
            wait_until(lambda: stub.replies > 20, seconds=30)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
        recorded = len(read_episodes(run))
        assert process.returncode == 130
        assert stderr.startswith("Finishing ") and len(stderr.splitlines()) == 1
        assert f"Left to do: {60 - recorded} episodes (interrupted)." in stdout
        assert 0 < recorded < 60 and stub.replies == len(stub.bodies), "a reply was thrown away"
        assert (read_summary(run)["episodes"], read_summary(run)["stopped"]) == (
            recorded,
            "interrupted",
        )
        stub.latency = 0.0
        again = collect(*command)
    assert again.returncode == 0 and f"60 ({60 - recorded} new)" in again.stdout
    assert episode_indexes(run) == list(range(60))


def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with (
        chat_stub(script=HANGING_REPLIES) as stub,
        start_collect(*stub_args(stub, "-n", "60", "--concurrency", "4", "-o", run)) as process,
    ):
        wait_until(lambda: stub.counts["hang"] >= 4, seconds=30)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "Ctrl-C" in process.stderr.readline()
        assert process.poll() is None, "active episodes are finished"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "")
    recorded = len(read_episodes(run))
    assert recorded > 0 and f"Left to do: {60 - recorded} episodes (interrupted)." in stdout


def test_sigterm_stops_at_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with (
        chat_stub(script=HANGING_REPLIES) as stub,
        start_collect(*stub_args(stub, "-n", "60", "--concurrency", "4", "-o", run)) as process,
    ):
        wait_until(lambda: stub.counts["hang"] >= 4, seconds=30)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (143, "")
    recorded = len(read_episodes(run))
    assert recorded > 0 and f"Left to do: {60 - recorded} episodes (terminated)." in stdout
    assert read_summary(run)["episodes"] == recorded


def test_ctrl_c_before_the_first_episode_prints_one_line_and_writes_nothing(tmp_path: Path) -> None:
    with (
        chat_stub(models="hang") as stub,
        start_collect(*stub_args(stub, "-o", tmp_path / "run")) as process,
    ):
        wait_until(lambda: stub.counts["hang"] == 1, seconds=30)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (130, "", "Interrupted.\n")
    assert not (tmp_path / "run").exists()


def test_a_terminal_shows_progress_and_then_the_summary(tmp_path: Path) -> None:
    with chat_stub(latency=0.05) as stub:
        command = stub_args(stub, "-n", "20", "--concurrency", "4", "-o", tmp_path / "run")
        code, drawn = run_on_terminal("collect", *command, env=CLEAN_ENV)
    assert code == 0
    live, _, left = drawn.rpartition("\x1b[2K")
    counts = [int(number) for number in re.findall(r"(\d+)/20\b", live)]
    assert counts == sorted(counts) and len({*counts}) > 2
    assert re.search(r"reward \d\.\d{3}", live)
    words = re.sub(r"\x1b\[[\d;]*m", "", left).split()
    assert words[:2] == ["episodes", "20"] and words[-2] == "run", "the bar is gone"
    assert live.rfind("\x1b[?25h") > live.rfind("\x1b[?25l"), "the cursor is there again"
