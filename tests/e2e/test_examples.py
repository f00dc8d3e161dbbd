"""The scripts and notebooks of examples/ that are not TRL's, and the table that maps them.

Those that are written for TRL are run by tests/train/trl_compat/test_examples.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from policy.models import saved
from tiny_tokenizers import of_family

from ludus.policy import smollm2

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = re.findall(
    r"^\| .* \| \[(\w+\.py), lines (\d+) to (\d+)\]\(\1#L\2-L\3\) \|$",
    (EXAMPLES / "README.md").read_text(),
    re.MULTILINE,
)
SMALL: dict[str, dict[str, Any]] = {
    "sft_warmup": {"EPISODES": 12, "STEPS": 1, "EVAL_EPISODES": 2},
    "offline_training": {"EPISODES": 8, "STEPS": 1, "EVAL_EPISODES": 2},
    "grpo_environment_factory": {
        **{"STEPS": 1, "GROUPS": 1, "GROUP_SIZE": 2, "MAX_TOKENS": 8, "USE_CPU": True},
    },
    "grpo_multi_env": {
        **{"EPISODES": 8, "SFT_STEPS": 1, "STEPS": 1, "GROUPS": 2, "GROUP_SIZE": 2},
        "MAX_TOKENS": 8,
    },
    "grpo_rollout_func": {"STEPS": 1, "GROUP_SIZE": 2, "MAX_TOKENS": 8, "USE_CPU": True},
}
"""Parameters under which a notebook takes seconds, by its name."""


def run_script(name: str, folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *options],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_notebook(name: str, folder: Path, parameters: dict[str, Any]) -> Any:
    """Execute a notebook in this folder, with other parameters; an error in a cell raises."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    (at,) = (
        index
        for index, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", ())
    )
    known = set(re.findall(r"[A-Z_]{4,}(?= *[=,])", notebook.cells[at].source))
    assert known >= parameters.keys()
    source = "\n".join(f"{key} = {value!r}" for key, value in parameters.items())
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(source))
    NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, timeout=600).execute()
    return notebook


@pytest.mark.parametrize(("name", "first", "last"), ROWS)
def test_lines_of_the_table_begin_at_a_section_of_the_script(
    name: str, first: str, last: str
) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    assert lines[int(first) - 1].strip().startswith("# ")
    assert int(first) < int(last) <= len(lines) and lines[int(last) - 1].strip()


def test_every_script_and_notebook_is_in_the_table() -> None:
    text = (EXAMPLES / "README.md").read_text()
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}]
    assert len(ROWS) > 30 and not [name for name in files if f"]({name})" not in text]
    assert {Path(name).stem for name in files if name.endswith(".ipynb")} == SMALL.keys()


def test_notebooks_hold_no_outputs() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        assert '"output_type"' not in path.read_text(), path.name


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Under the names that the notebooks have: a tiny model in place of smollm2, and of the one
    # that sft_warmup.ipynb trains.
    for folder in (tmp_path / "cache" / smollm2.release_id(), tmp_path / "warmup" / "model"):
        if name != "sft_warmup" or "cache" in folder.parts:
            saved(folder, of_family("qwen3"))
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))
    notebook = run_notebook(name, tmp_path, SMALL[name])
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert any(outputs), "something is shown"


@pytest.mark.slow
def test_the_warm_up_script_ends_with_the_command_for_grpo(tmp_path: Path) -> None:
    model = saved(tmp_path / "tiny", of_family("qwen3"))
    few = ("--episodes", "12", "--epochs", "1", "--eval-episodes", "2", "--max-tokens", "8")
    output = run_script("sft_warmup", tmp_path, "--model", str(model), *few)
    assert "12 rows" in output and "ludus train grpo" in output
    assert (tmp_path / "sft-warmup" / "model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_offline_script_compares_three_models(tmp_path: Path) -> None:
    model = saved(tmp_path / "tiny", of_family("qwen3"))
    options = ("--model", str(model), "--epochs", "1", "--eval-episodes", "2")
    output = run_script("offline_training", tmp_path, *options)
    assert [line.split()[0] for line in output.splitlines()[-3:]] == ["base", "sft", "dpo"]
