"""`ludus build` and `ludus push env`, on a stand-in engine and a local Hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from ludus_process import run_ludus
from publish.fake_hub import TOKEN, fake_hub
from stand_in_engine import StandInEngine, stand_in_engine

from cli.collect_cli import CLEAN_ENV, PYTHONPATH, error_line, read_episodes
from ludus.data.files import lock_dir

PRIVATE_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n"
PIP_INSTALL = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StandInEngine]:
    with stand_in_engine(tmp_path / "engine") as installed:
        yield installed


def test_a_generated_package_is_built_and_played_in_its_container(
    engine: StandInEngine, tmp_path: Path
) -> None:
    run_ludus("init", "pick-number", "--in", str(tmp_path))
    site, package = tmp_path / "site", tmp_path / "pick_number"
    install = [sys.executable, *PIP_INSTALL, "--target", str(site), str(package)]
    subprocess.run(install, check=True, timeout=120)
    path = os.pathsep.join((str(site), PYTHONPATH))
    env = {**CLEAN_ENV, "PYTHONPATH": path, "PATH": engine.path}
    built = run_ludus("build", "pick_number", cwd=tmp_path, env=env)
    assert built.returncode == 0, built.stderr
    context = tmp_path / "build" / "pick_number"
    manifest = yaml.safe_load((context / "openenv.yaml").read_text())
    assert manifest["name"] == "pick_number" and manifest["spec_version"] == 1
    assert manifest["app"] == "server.app:app" and manifest["port"] == 8000
    assert (context / "src/pick_number/__init__.py").is_file()
    script = "from server.app import app; print(app.title)"
    app = subprocess.run(
        [sys.executable, "-c", script],
        cwd=context,
        env={**os.environ, "PYTHONPATH": str(context / "src")},
        capture_output=True,
        text=True,
    )
    assert app.stdout.strip() == "pick_number", app.stderr
    # The container has the context's sources alone: the environment is found by its metadata.
    command = ("collect", "docker:pick-number-env:latest", "-n", "4", "-o", "run")
    done = run_ludus(*command, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    episodes = read_episodes(tmp_path / "run")
    assert [(e.environment, e.reward) for e in episodes] == [("pick_number", 1.0)] * 4
    assert not engine.containers()


def test_the_dockerfile_pins_drops_root_and_checks_health(tmp_path: Path) -> None:
    out = tmp_path / "context"
    command = ("build", "reasoning_gym:chain_sum", "--no-build", "-o", str(out), "--apt", "git")
    done = run_ludus(*command, env=CLEAN_ENV)
    assert done.returncode == 0, done.stderr
    assert "reasoning-gym-chain-sum-env:latest" in done.stdout
    lines = (out / "Dockerfile").read_text().splitlines()
    assert any(line.startswith("FROM python:3.") for line in lines)
    assert lines.index("USER 1000") > lines.index("COPY . .")
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    assert any("install --yes --no-install-recommends git" in line for line in lines)
    command_line = json.loads(lines[-1].removeprefix("CMD "))
    assert command_line[:5] == ["python", "-m", "ludus", "serve", "reasoning_gym:chain_sum"]
    pins = dict(line.split("==") for line in (out / "requirements.txt").read_text().split())
    assert {"reasoning-gym", "uvicorn", "pydantic-core"} < pins.keys()
    assert not {"ludus-rl", "torch", "pytest"} & pins.keys()
    assert not list(out.rglob("__pycache__"))


def test_a_folder_with_other_files_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine.py").touch()
    command = ("build", "catch", "--no-build", "-o", str(tmp_path))
    refused = run_ludus(*command, env=CLEAN_ENV)
    assert refused.returncode == 1 and "--output-dir" in refused.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["src", "mine.py"]
    out = tmp_path / "new"
    command = ("build", "catch", "--no-build", "-o", str(out))
    assert run_ludus(*command, env=CLEAN_ENV).returncode == 0
    (out / "src" / "stale.py").touch()
    with lock_dir(out):
        assert "Another process is writing" in error_line(run_ludus(*command, env=CLEAN_ENV))
    assert (out / "src" / "stale.py").exists()
    assert run_ludus(*command, env=CLEAN_ENV).returncode == 0
    assert not (out / "src" / "stale.py").exists(), "an older context is replaced"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An environment package in the working directory."""
    folder = tmp_path / "secretive"
    folder.mkdir()
    (folder / "__init__.py").write_text("from ludus.envs.catch import Catch as Mine\n")
    return folder


def build(package: Path) -> subprocess.CompletedProcess[str]:
    """Build an environment in a package or file, which is called `Mine`."""
    command = ("build", f"{package.name}:Mine", "--no-build", "-o", "context")
    return run_ludus(*command, cwd=package.parent, env=CLEAN_ENV)


def test_a_link_to_what_is_not_copied_is_refused(package: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "passwords.txt").touch()
    hidden = package / ".env"
    hidden.write_text("HF_TOKEN=hf_1")
    for target in (outside / "passwords.txt", outside, tmp_path / "missing", hidden):
        (package / "data").symlink_to(target)
        refused = build(package)
        assert refused.returncode == 1 and str(target) in error_line(refused)
        assert not (tmp_path / "context").exists()
        (package / "data").unlink()
    assert build(package).returncode == 0


def test_a_link_beside_a_file_to_another_folder_is_refused(tmp_path: Path) -> None:
    elsewhere, project = tmp_path / "elsewhere", tmp_path / "project"
    (elsewhere / "hlp").mkdir(parents=True)
    (elsewhere / "hlp/__init__.py").touch()
    (elsewhere / "words.py").touch()
    project.mkdir()
    file = project / "mine.py"
    for name, module in (("hlp", "hlp"), ("words.py", "words")):
        file.write_text(f"import {module}\nfrom ludus.envs.catch import Catch as Mine\n")
        (project / name).symlink_to(elsewhere / name)
        refused = build(file)
        assert refused.returncode == 1 and str(elsewhere / name) in error_line(refused)
        assert not (project / "context").exists()
        (project / name).unlink()


def test_links_in_a_package_are_refused_in_one_line(package: Path) -> None:
    (package / "first").mkdir()
    (package / "second").mkdir()
    (package / "first/next").symlink_to(package / "second")
    (package / "second/next").symlink_to(package / "first")
    refused = build(package)
    assert refused.returncode == 1 and "first/next" in error_line(refused)
    (package / "second/next").unlink()
    (package / "first/next").unlink()
    (package / "self").symlink_to("self")
    refused = build(package)
    assert refused.returncode == 1 and "self" in error_line(refused)


def test_files_that_look_like_secrets_stop_the_command(package: Path, tmp_path: Path) -> None:
    (package / "data").mkdir()
    names = ("credentials.json", "data/id_rsa", "data/notes.txt", "Server.PEM")
    for name in names:
        (package / name).write_text(PRIVATE_KEY)
    (package / "secrets.py").touch()
    refused = build(package)
    assert refused.returncode == 1 and not (tmp_path / "context").exists()
    assert all(f"secretive/{name}" in error_line(refused) for name in names)
    assert "secrets.py" not in refused.stderr
    for name in names:
        (package / name).unlink()
    assert build(package).returncode == 0
    (tmp_path / "context/.env").write_text("HF_TOKEN=hf_1")
    refused = build(package)
    assert refused.returncode == 1 and ".env" in error_line(refused)


def test_secrets_are_known_by_their_names(package: Path) -> None:
    names = {
        *("google_credentials.json", "application_default_credentials.json", "aws_credentials"),
        *("credentials.yaml", "credentials.toml", "credentials.json.bak", "gcp-key.json"),
        *("id_rsa.bak", "id_rsa_backup", "id_rsa_work", "private.ppk", "kubeconfig", "token.txt"),
        *("hf_token", "secret.txt", "passwords.txt", "auth.json", "terraform.tfstate"),
    }
    plain = {
        *("tokenizer.json", "tokenizer_config.json", "tokens.py", "special_tokens_map.json"),
        *("secret_santa.py", "secret_words.txt", "credentials.py", "id_rsa.pub", "author.json"),
        *("answer_key.json", "password_game.json", "service_accounts.csv"),
    }
    for name in names | plain:
        (package / name).touch()
    named = error_line(build(package)).split(": these files")[0].removeprefix("Error: ")
    assert set(named.split(", ")) == {f"secretive/{name}" for name in names}


def test_a_private_key_need_not_be_at_the_start(package: Path) -> None:
    contents = [
        *(
            f"{before}{PRIVATE_KEY}".encode()
            for before in ("\n", "\ufeff", "\r\n" * 1000, "Bag: 1\n")
        ),
        PRIVATE_KEY.encode("utf-16"),
        json.dumps({"type": "service_account", "private_key": PRIVATE_KEY}).encode(),
    ]
    for number, content in enumerate(contents):
        (package / f"{number}.txt").write_bytes(content)
    refused = error_line(build(package))
    assert all(f"secretive/{number}.txt" in refused for number in range(len(contents)))


def test_code_that_looks_for_private_keys_is_no_secret(package: Path) -> None:
    (package / "scan.py").write_text("KEYS = ['-----BEGIN RSA PRIVATE KEY-----', 'PRIVATE KEY']\n")
    assert build(package).returncode == 0


@pytest.mark.slow
def test_an_environment_in_a_file_is_copied_and_served_by_module_and_class(
    engine: StandInEngine, tmp_path: Path
) -> None:
    """With the modules beside it that it imports, and no others."""
    (tmp_path / "my_env.py").write_text("from helpers.games import Mine\nimport words\n")
    (tmp_path / "words.py").touch()
    (tmp_path / "unused.py").touch()
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").touch()
    (tmp_path / "helpers" / "games.py").write_text("from ludus.envs.catch import Catch as Mine\n")
    env = {**CLEAN_ENV, "PATH": engine.path}
    built = run_ludus("build", "my_env.py:Mine", "--tag", "mine:1", cwd=tmp_path, env=env)
    assert built.returncode == 0, built.stderr
    assert ["build", "--tag", "mine:1", "build/my_env_mine"] in engine.calls
    copied = {path.name for path in (tmp_path / "build/my_env_mine/src").iterdir()}
    assert {"my_env.py", "words.py", "helpers"} <= copied and "unused.py" not in copied
    done = run_ludus("check", "docker:mine:1", "--seeds", "2", env=env, cwd=tmp_path / "engine")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_spec_with_quotes_is_a_string_in_the_written_application(tmp_path: Path) -> None:
    spec = 'mcp:npx -y "@tools/calculator"'
    done = run_ludus("build", spec, cwd=tmp_path, env={**CLEAN_ENV, "PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    (module,) = (tmp_path / "build").rglob("server/app.py")
    assert repr(spec) in module.read_text()
    compile(module.read_text(), str(module), "exec")


def test_without_an_engine_the_context_is_written_all_the_same(tmp_path: Path) -> None:
    done = run_ludus("build", "catch", cwd=tmp_path, env={**CLEAN_ENV, "PATH": str(tmp_path)})
    assert done.returncode == 0 and "docker build --tag catch-env:latest" in done.stdout
    assert (tmp_path / "build" / "catch" / "Dockerfile").is_file()


def test_push_env_makes_a_private_docker_space(tmp_path: Path) -> None:
    command = ("push", "env", "catch", "ada/catch")
    with fake_hub() as hub:
        env = {**CLEAN_ENV, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        refused = run_ludus(*command, cwd=tmp_path, env=env)
        assert refused.returncode == 1 and "HF_TOKEN" in refused.stderr
        env["HF_TOKEN"] = TOKEN
        hub.files.update({"src/ludus/old.py": b"", ".gitattributes": b"", "notes.md": b""})
        done = run_ludus(*command, "--private", cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        assert f"{hub.url}/spaces/ada/catch" in done.stdout
        assert "https://ada-catch.hf.space" in done.stdout
    assert hub.kinds == {"ada/catch": "space"} and hub.repos == {"ada/catch": True}
    assert {"Dockerfile", "README.md", "openenv.yaml", "requirements.txt"} < hub.files.keys()
    assert "src/ludus/envs/catch.py" in hub.files
    assert "src/ludus/old.py" not in hub.files, "a file that the sources do not have any more"
    assert {".gitattributes", "notes.md"} < hub.files.keys()
    assert not any(TOKEN.encode() in data for data in hub.files.values())


def test_a_name_that_no_space_can_have_is_refused(tmp_path: Path) -> None:
    done = run_ludus("push", "env", "catch", "nonsense", cwd=tmp_path, env=CLEAN_ENV)
    assert done.returncode == 1 and "USER/NAME" in done.stderr
    assert not list(tmp_path.iterdir())
