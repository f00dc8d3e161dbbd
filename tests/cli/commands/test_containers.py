"""`docker:IMAGE` in the commands, on a stand-in engine that runs real servers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from ludus_process import run_ludus, start_ludus
from stand_in_engine import StandInEngine, stand_in_engine

from cli.collect_cli import CLEAN_ENV, read_episodes

SPEC = "docker:echo-env:latest"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StandInEngine]:
    with stand_in_engine(tmp_path / "engine") as installed:
        installed.serve("echo-env:latest", "echo")
        yield installed


def env_of(engine: StandInEngine) -> dict[str, str]:
    return {**CLEAN_ENV, "PATH": engine.path}


def test_collect_plays_all_episodes_on_one_container(engine: StandInEngine, tmp_path: Path) -> None:
    done = run_ludus("collect", SPEC, "-n", "20", "-o", "run", cwd=tmp_path, env=env_of(engine))
    assert done.returncode == 0, done.stderr
    episodes = read_episodes(tmp_path / "run")
    assert [episode.environment for episode in episodes] == ["echo"] * 20
    assert [episode.reward for episode in episodes] == [pytest.approx(10.0)] * 20
    assert [call[0] for call in engine.calls].count("run") == 1
    assert not engine.containers()
    again = run_ludus("collect", SPEC, "-n", "20", "-o", "run", cwd=tmp_path, env=env_of(engine))
    assert again.returncode == 0
    assert [call[0] for call in engine.calls].count("run") == 1, "a complete run needs no container"


def test_check_and_play_remove_their_containers(engine: StandInEngine) -> None:
    checked = run_ludus("check", SPEC, "--seeds", "2", env=env_of(engine))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert not engine.containers()
    played = run_ludus("play", SPEC, typed="echo_message\nhello\nquit\n", env=env_of(engine))
    assert "hello" in played.stdout
    assert not engine.containers()


def test_an_interrupted_run_removes_its_container(engine: StandInEngine, tmp_path: Path) -> None:
    engine.add_image("silent", "sleep", "600")
    with start_ludus("collect", "docker:silent", cwd=tmp_path, env=env_of(engine)) as process:
        engine.wait_until_started()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        assert not engine.containers()


@pytest.mark.parametrize("command", ["check", "play", "collect"])
def test_an_engine_without_a_daemon_is_one_line(engine: StandInEngine, command: str) -> None:
    (engine.folder / "no_daemon").touch()
    done = run_ludus(command, SPEC, env=env_of(engine))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "Cannot connect to the daemon" in done.stderr


def test_a_container_cannot_be_served_again() -> None:
    done = run_ludus("serve", SPEC)
    assert done.returncode == 1 and SPEC in done.stderr
