"""Containers start, are shared by sessions, and are removed whatever happens to the client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stand_in_engine import StandInEngine, install_engine, stand_in_engine

from ludus import connect
from ludus.client.container import Container, find_container_engine
from ludus.envs.echo import EchoAction, EchoEnv
from ludus.errors import ConfigError, ContainerFailed, SessionLost
from ludus.rollout.session_pool import SessionPool

IMAGE = "echo-env:latest"
HEALTHY_SERVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInEngine]:
    with stand_in_engine(tmp_path / "engine") as installed:
        monkeypatch.setenv("PATH", installed.path)
        installed.serve(IMAGE, "echo")
        yield installed


async def test_all_sessions_of_an_endpoint_share_one_container(engine: StandInEngine) -> None:
    async with connect(f"docker:{IMAGE}") as endpoint:
        async with endpoint.session() as first, endpoint.session() as second:
            assert len(engine.containers()) == 1
            ours = await first.reset(seed=3)
            assert (await second.reset(seed=3)).observation == ours.observation
        assert len(engine.containers()) == 1, "it outlives its sessions"
    assert not engine.containers()
    runs = [call for call in engine.calls if call[0] == "run"]
    assert len(runs) == 1 and "127.0.0.1::8000" in runs[0], "on loopback, on a free port"


@pytest.mark.slow
async def test_a_container_that_ended_is_started_again_for_the_next_session(
    engine: StandInEngine,
) -> None:
    async with connect(f"docker:{IMAGE}") as endpoint:
        pool = SessionPool(endpoint)
        session = await pool.acquire()
        before = (await session.reset(seed=1)).observation
        (pid,) = engine.containers().values()
        os.killpg(pid, signal.SIGKILL)
        with pytest.raises(SessionLost):
            await session.reset(seed=1)
        await pool.discard(session)
        session = await pool.acquire()
        assert (await session.reset(seed=1)).observation == before
        await pool.discard(session)
    assert not engine.containers()


def test_the_client_of_a_tutorial_needs_neither_await_nor_close(engine: StandInEngine) -> None:
    client = EchoEnv.from_docker_image(IMAGE)
    assert not engine.containers(), "it starts on first use"
    client.reset()
    rewards = [client.step(EchoAction(message=text)).reward for text in ("hello", "hi")]
    assert rewards == [pytest.approx(0.5), pytest.approx(0.2)]
    client.close()
    assert not engine.containers()


async def test_an_awaited_client_passes_variables_without_showing_their_values(
    engine: StandInEngine,
) -> None:
    script = "import os, sys; sys.exit(os.environ['SECRET'])"
    engine.add_image("tells", sys.executable, "-c", script)
    with pytest.raises(ContainerFailed, match="a-value"):
        await EchoEnv.from_docker_image("tells", env_vars={"SECRET": "a-value"})
    assert not any("a-value" in word for call in engine.calls for word in call)
    client = await EchoEnv.from_docker_image(IMAGE)
    assert (await client.step(EchoAction(message="ab"))).observation.message_length == 2
    await client.close()
    assert not engine.containers()


@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_a_client_that_ends_without_closing_leaves_no_container(
    engine: StandInEngine, how: signal.Signals | None
) -> None:
    engine.add_image("healthy", sys.executable, "-S", "-c", HEALTHY_SERVER)
    # The forked child holds every open file of the client, and outlives it.
    script = f"""
import asyncio, os, time
from ludus.client.container import Container
container = Container("healthy")
asyncio.run(container.start())
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print("ready", flush=True)
{"time.sleep(60)" if how else ""}
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        if how is not None:
            assert len(engine.containers()) == 1
            process.send_signal(how)
        process.wait()
        engine.wait_until_removed()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


async def test_a_cancelled_start_removes_the_container(engine: StandInEngine) -> None:
    engine.add_image("silent", "sleep", "600")
    start = asyncio.create_task(Container("silent").start())
    await asyncio.to_thread(engine.wait_until_started)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not engine.containers()


async def test_a_start_that_is_cancelled_during_the_pull_creates_no_container(
    engine: StandInEngine,
) -> None:
    engine.add_slow_pull("huge")
    start = asyncio.create_task(Container("huge").start())
    await asyncio.to_thread(engine.wait_for_call, "run")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert [call[0] for call in engine.calls][-1] == "rm", "after the client, which it ends"
    assert not engine.containers()


async def test_a_container_that_is_not_healthy_in_time_is_removed(engine: StandInEngine) -> None:
    engine.add_image("silent", "sh", "-c", "echo loading the model; sleep 600")
    with pytest.raises(ContainerFailed, match=r"healthy within 0\.5 s") as raised:
        await Container("silent", timeout_s=0.5).start()
    assert "\n" not in str(raised.value)
    assert not engine.containers()


async def test_a_container_that_ends_at_its_start_is_reported_with_its_last_lines(
    engine: StandInEngine,
) -> None:
    engine.add_image("broken", "sh", "-c", "echo first; echo No module named maze; exit 3")
    with pytest.raises(ContainerFailed) as raised:
        await Container("broken").start()
    assert "exit code 3" in str(raised.value) and "No module named maze" in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_the_reason_of_the_engine_is_reported(
    engine: StandInEngine,
) -> None:
    with pytest.raises(ContainerFailed, match=r"could not run 'nobody/has:it'.*pull access denied"):
        await Container("nobody/has:it").start()
    (engine.folder / "no_daemon").touch()
    with pytest.raises(ContainerFailed, match=r"Is it running\? `ludus build`"):
        await Container(IMAGE).start()


def test_podman_is_used_where_docker_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman, docker = install_engine(tmp_path / "p", "podman"), install_engine(tmp_path / "d")
    monkeypatch.setenv("PATH", str(podman.folder / "bin"))
    assert find_container_engine() == "podman"
    monkeypatch.setenv("PATH", f"{podman.folder / 'bin'}{os.pathsep}{docker.folder / 'bin'}")
    assert find_container_engine() == "docker"
    monkeypatch.setenv("LUDUS_CONTAINER_ENGINE", "podman")
    assert find_container_engine() == "podman"
    monkeypatch.delenv("LUDUS_CONTAINER_ENGINE")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerFailed, match="Docker or Podman"):
        find_container_engine()


@pytest.mark.parametrize("image", ["", "--privileged", "a b"])
def test_an_image_name_is_never_an_option(image: str) -> None:
    with pytest.raises(ConfigError):
        Container(image)
