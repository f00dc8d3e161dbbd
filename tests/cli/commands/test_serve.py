"""`ludus serve`: invalid addresses, and the sources of the token."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import httpx
import pytest
from ludus_process import LUDUS, run_ludus, served_by_program

from ludus.errors import FactoryFailed
from ludus.serve.config import ServeConfig
from ludus.serve.server import serve

SECRET = "s3cret-token"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--port", "80000"), "80000"),
        (("--port", "-1"), "-1"),
        (("--host", "no.such.host.invalid", "--token", "x"), "no.such.host.invalid"),
        (("--host", "a..b", "--token", "x"), "a..b"),
        (("--host", "0.0.0.0"), "LUDUS_TOKEN"),
        (("--allow-origin", "play.example"), "--allow-origin"),
    ],
)
def test_an_invalid_option_is_one_line(options: tuple[str, ...], words: str) -> None:
    done = run_ludus("serve", "echo", *options)
    assert done.returncode == 1 and done.stdout == ""
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line() -> None:
    with served_by_program("echo", "--workers", "2") as program:
        port = program.url.rpartition(":")[2]
        for workers in ("1", "2"):
            done = run_ludus("serve", "echo", "--port", port, "--workers", workers)
            assert done.returncode == 1 and done.stderr.count("\n") == 1
            assert port in done.stderr


def test_hosts_and_origins_of_the_variables_add_to_the_options() -> None:
    options = ("--allow-host", "*.hf.space", "--allow-origin", "https://a.example")
    env = {"LUDUS_ALLOW_HOSTS": "my-env, other", "LUDUS_ALLOW_ORIGINS": "https://b.example"}

    def status(**headers: str) -> int:
        return httpx.get(f"{program.url}/schema", headers=headers).status_code

    with served_by_program("catch", *options, env=env) as program:
        hosts = ("u-g.hf.space", "my-env:8000", "other", "third.example")
        assert [status(Host=host) for host in hosts] == [200, 200, 200, 421]
        origins = ("https://a.example", "https://b.example", "https://c.example")
        assert [status(Origin=origin) for origin in origins] == [200, 200, 403]


@pytest.mark.parametrize(
    ("name", "words"), [("Hopeless", "out of order"), ("NeedsProgram", "frob")]
)
def test_an_environment_that_cannot_be_built_is_not_served(name: str, words: str) -> None:
    ready: list[str] = []
    with pytest.raises(FactoryFailed, match=words):
        serve(f"check.test_checks:{name}", ServeConfig(port=0), on_ready=ready.append)
    assert not ready


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_goes_on_when_nobody_reads_its_output(workers: str) -> None:
    process = subprocess.Popen(
        [*LUDUS, "serve", "echo", "--port", "0", "--workers", workers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        process.stdout.close()
        assert found and httpx.get(f"{found.group()}/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0 and process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def run_with_token(*options: str, **env: str) -> tuple[int, str]:
    """The status of a request with the token, and the server's stderr."""
    process = subprocess.Popen(
        [*LUDUS, "serve", "echo", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **env},
    )
    assert process.stdout is not None
    address = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
    assert address is not None
    headers = {"Authorization": f"Bearer {SECRET}"}
    with httpx.Client(base_url=address.group(), trust_env=False) as http:
        assert http.get("/schema").status_code == 401
        status = http.get("/schema", headers=headers).status_code
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    return status, errors


def test_a_token_comes_from_the_command_line_or_the_environment_and_is_not_printed() -> None:
    assert run_with_token("--token", SECRET) == (200, "")
    assert run_with_token(LUDUS_TOKEN=SECRET) == (200, "")


def test_the_help_of_every_command_prefers_the_environment_variable() -> None:
    for command in ("serve", "serve-model", "check", "play"):
        text = " ".join(run_ludus(command, "--help-all").stdout.replace("│", " ").split())
        assert "Prefer LUDUS_TOKEN" in text and "[env var: LUDUS_TOKEN]" in text
