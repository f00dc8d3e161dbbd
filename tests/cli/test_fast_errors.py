"""Wrong names and paths are reported before torch is imported and before the Hub is asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from ludus_process import run_ludus

HEAVY_PACKAGES = ("torch", "transformers", "trl", "datasets", "huggingface_hub")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH that records which heavy packages a process imported."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "sitecustomize.py").write_text(
        "import atexit, pathlib, sys\n"
        f"note = lambda: pathlib.Path({str(folder / 'imported')!r}).write_text("
        f"' '.join(name for name in {HEAVY_PACKAGES!r} if name in sys.modules))\n"
        "atexit.register(note)\n"
    )
    return folder


def error_line(watched: Path, cwd: Path, arguments: Sequence[str]) -> str:
    # PYTHONUNBUFFERED starts a new process instead of a fork, which has imported torch already.
    path = os.pathsep.join((str(watched), os.environ.get("PYTHONPATH", "")))
    done = run_ludus(*arguments, cwd=cwd, env={"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"})
    assert done.returncode == 1, done.stderr
    assert (watched / "imported").read_text() == ""
    (line,) = done.stderr.splitlines()
    return line


SMOLLM2 = ("--model", "smollm2", "-o", "models/out")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("collect", "wordl", "--agent", "hf:smollm2"), "'wordle'"),
        (("collect", "wordle", "--agent", "hf:models/wordl"), "'models/wordle'"),
        (("collect", "wordle", "--agent", "hf:smolm2"), "'smollm2'"),
        (("collect", "wordle", "--agent", "hf:models/empty"), "config.json"),
        (("collect", "wordle", "--agent", "hf:smollm2", "--device", "cudaa"), "'cuda'"),
        (("collect", "wordle", "--agent", "hf:smollm2", "--dtype", "fp17"), "'fp16'"),
        (("collect", "wordle", "--model", "smollm2"), "hf"),
        (("collect", "wordle", "--model", "gpt-5-mini"), "openai"),
        (("collect", "wordle", "--model", "claude-haiku-4-5"), "anthropic"),
        (("eval", "wordl", "-c", "smollm2"), "'wordle'"),
        (("eval", "wordle", "-c", "models/wordl"), "'models/wordle'"),
        (("eval", "wordle", "-c", "sft=hf:models/wordl"), "'models/wordle'"),
        (("eval", "wordle", "-c", "smolm2"), "'smollm2'"),
        (("eval", "wordle", "-c", "smollm2", "--device", "gpu"), "'gpu'"),
        (("train", "sft", "data/sum", *SMOLLM2), "'data/sums'"),
        (
            ("train", "sft", "data/sums", "-m", "models/wordl", "-o", "models/out"),
            "'models/wordle'",
        ),
        (("train", "sft", "data/sums", *SMOLLM2, "--device", "cudaa"), "'cuda'"),
        (("train", "sft", "data/sums", "-m", "smollm2", "-o", "taken"), "taken"),
        (("train", "grpo", "wordl", *SMOLLM2), "'wordle'"),
        (("train", "grpo", "wordle", "-m", "smolm2", "-o", "models/out"), "'smollm2'"),
        (("train", "grpo", "wordle", "-m", "smollm2", "-o", "taken"), "taken"),
        (("train", "grpo", "wordle", *SMOLLM2, "--device", "tpu"), "'tpu'"),
        (("train", "sft", "data/sums", *SMOLLM2), "data/sums/train.jsonl:1 has no messages"),
        (("train", "sft", "data/asked", *SMOLLM2), "data/asked has no assistant message"),
        (("train", "sft", "data/bad", *SMOLLM2), "data/bad/train.jsonl:2 is not JSON"),
        (("train", "sft", "data/none", *SMOLLM2), "data/none has no rows"),
        (("train", "dpo", "data/sft", *SMOLLM2), "`ludus train sft`"),
        (("train", "grpo", "wordle", *SMOLLM2, "--vllm-mode", "colocate"), "pip install"),
        (("train", "grpo", "wordle", *SMOLLM2, "--set", "top_p=2"), "--top-p"),
        (("train", "grpo", "wordle", *SMOLLM2, "--reward-func", "nowhere:f"), "nowhere"),
        (("train", "sft", "/dev/zero", *SMOLLM2), "regular file"),
        (("collect", "wordle", "--tasks", "/dev/zero"), "regular file"),
        (("lint", "data/sums", "--student", "models/wordl"), "'models/wordle'"),
    ],
)
def test_errors_are_reported_before_heavy_imports(
    watched: Path, tmp_path: Path, arguments: Sequence[str], named: str
) -> None:
    (tmp_path / "models" / "wordle").mkdir(parents=True)
    (tmp_path / "models" / "empty").mkdir()
    good = '{"messages": [{"role": "assistant", "content": "4"}]}\n'
    asked = '{"messages": [{"role": "user", "content": "2 + 2"}]}\n' * 3
    rows = {
        "sums": '{"messages": []}\n', "bad": f"{good}{{no\n", "none": "", "sft": good,
        "asked": asked,
    }  # fmt: skip
    for name, text in rows.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "train.jsonl").write_text(text)
    (tmp_path / "taken").write_text("")
    assert named in error_line(watched, tmp_path, arguments)
    assert not any((tmp_path / name).exists() for name in ("out", "models/out"))
