"""`ludus run` and `ludus new`: all recipes in reduced size, and what they print."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from recipe.small_recipes import REDUCED, TAUGHT, save_models, set_flags, unsteady_teacher

from cli.in_process import Result, Runner
from ludus.cli.flags import name_flags
from ludus.errors import ConfigError, LudusError, RunError
from ludus.recipe.recipe_file import shipped_recipes

STAGES = {name: [*tomllib.loads(text)] for name, text in shipped_recipes().items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder / "cache", folder)
    return folder


@pytest.fixture
def folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the models of the recipes."""
    for name in ("Qwen", "prices.json"):
        (tmp_path / name).symlink_to(models / name)
    monkeypatch.setenv("LUDUS_CACHE", str(models / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-nobody")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, wide: bool = True) -> Result:
    return Runner(env={"COLUMNS": "300" if wide else "80"}).invoke(["run", *arguments])


def error_of(*arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, LudusError), result.output
    return name_flags(str(result.exception))


@pytest.mark.parametrize("name", REDUCED)
def test_a_recipe_is_planned_without_running_anything(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(name, "--dry-run")
    assert result.exit_code == 0, result.output
    commands = [line for line in result.output.splitlines() if line.startswith("  ludus ")]
    stages = [key for key in STAGES[name] if key not in ("description", "next", "defaults")]
    assert len(commands) == len(stages)
    # What is printed can be typed.
    for command in commands:
        parsed = Runner().invoke([*shlex.split(command)[1:], "--help"])
        assert parsed.exit_code == 0, parsed.output
    assert not [*tmp_path.iterdir()]


def test_a_missing_key_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "[collect] No API key for openai" in run("chain-sum", "--dry-run").output
    assert "[collect] No API key for openai" in error_of("chain-sum")
    assert not [*tmp_path.iterdir()]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REDUCED)
def test_a_recipe_runs_and_then_has_nothing_to_do(name: str, folder: Path) -> None:
    with unsteady_teacher() as teacher:
        flags = set_flags(REDUCED[name])
        if name in TAUGHT:
            flags += ["--set", f"collect.llm_endpoint={teacher.url}"]
        result = run(name, *flags)
        assert result.exit_code == 0, (result.output, result.exception)
        state = json.loads((folder / "runs" / name / "recipe.json").read_bytes())["stages"]
        stages = [key for key in STAGES[name] if key not in ("description", "next", "defaults")]
        assert [*state] == stages and all(each["done"] for each in state.values())
        assert "To go further" in result.output
        summary = json.loads((folder / "runs" / name / "eval" / "summary.json").read_bytes())
        assert summary["complete"] and len(summary["candidates"]) >= 2
        assert f"Report: runs/{name}/report.html" in result.output
        assert (folder / "runs" / name / "report.html").stat().st_size > 1000
        asked = len(teacher.bodies)
        again = run(name, *flags)
        assert again.exit_code == 0 and again.stderr.count(": up to date") == len(stages)
        assert len(teacher.bodies) == asked


def test_the_equivalent_command_is_recorded_in_the_model(folder: Path) -> None:
    flags = set_flags(REDUCED["quickstart"])
    assert run("quickstart", *flags, "--only", "collect", "--only", "curate").exit_code == 0
    result = run("quickstart", *flags, "--only", "sft")
    assert result.exit_code == 0, result.output
    record = json.loads((folder / "runs/quickstart/sft/training.json").read_bytes())
    assert record["command"].startswith("ludus train sft runs/quickstart/curate --model smollm2")


def test_more_episodes_are_added_and_what_depends_on_them_runs_again(folder: Path) -> None:
    (folder / "loop.toml").write_text(
        '[collect]\nenv = "wordle"\nnum_episodes = 3\n[curate]\nruns = ["{collect}"]\n'
    )
    assert run("loop.toml").exit_code == 0
    first = (folder / "runs/loop/collect/episodes.jsonl").read_bytes()
    result = run("loop.toml", "--set", "collect.num_episodes=5")
    assert "[2/2] curate: input changed: collect" in result.stderr
    episodes = (folder / "runs/loop/collect/episodes.jsonl").read_bytes()
    assert episodes.startswith(first) and episodes.count(b"\n") == 5
    # Another seed is another run: the old one is kept.
    result = run("loop.toml", "--set", "collect.seed=7")
    assert result.exit_code == 0 and "runs/loop/earlier/collect-1" in result.stderr
    assert (folder / "runs/loop/earlier/collect-1/episodes.jsonl").read_bytes() == episodes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "sft.stepz=3"), "[sft] has no option 'stepz'. Did you mean 'steps'?"),
        (("--set", "sft.steps=many"), "[sft]"),
        (("--set", "sft.output_dir=x"), "managed"),
        (("--set", "sft.overwrite=true"), "managed"),
        (("--set", "curate.dedupe=3"), "[curate] Invalid value for dedupe: unable"),
        (("--set", "defaults.sytem_prompt=x"), "'system_prompt'"),
        (("--set", "sft.command=stf"), "'sft'"),
        (("--set", "sft.command=push"), "'push env'"),
        (("--set", "sft.epochs=1"), "[sft] Set either --epochs or --steps"),
        (("--set", "eval.candidate.other=nobody"), "[eval] Unknown agent 'nobody'"),
        (("--set", "collect.explore=2"), "[collect]"),
        (("--set", "stf.steps=3"), "--set"),
        (("--set", "eval.env=wordel"), "'wordle'"),
        (("--set", "eval.candidate.b=openai:gpt-5-mini"), "[eval] No API key"),
        (("--set", "sft.set={warmup_step = 3}"), "'warmup_steps'"),
        (("--set", "sft.model=./missing"), "[sft] There is no model"),
        (("--set", "sft.data=./missing"), "[sft] There is no data set"),
        (("--set", "curate.runs=['missing/run']"), "[curate]"),
        (("--from", "evl"), "--from"),
        (("--only", "evl"), "'eval'"),
        (("--only", "eval"), "[eval] needs the result of"),
    ],
)
def test_mistakes_are_named_before_anything_starts(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert words in error_of("quickstart", *arguments)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "overrides",
    [
        ("sft.set={weight_decay = 0.1}",),
        ("eval.env='wordle=1'", "eval.task={length = 6}"),
        ("eval.env=wordle", "eval.task={split = 'test', index = 3}"),
    ],
)
def test_what_the_commands_accept_is_accepted_before_the_start(
    overrides: tuple[str, ...], folder: Path
) -> None:
    flags = [flag for override in overrides for flag in ("--set", override)]
    result = run("quickstart", "--dry-run", *flags)
    assert result.exit_code == 0, result.exception


def test_a_stage_that_fails_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.toml").write_text(
        '[collect]\nenv = "wordle"\nnum_episodes = 2\n'
        '[curate]\nruns = ["{collect}"]\nmin_reward = 99\n'
    )
    error_of("loop.toml")
    state = json.loads(Path("runs/loop/recipe.json").read_bytes())["stages"]
    assert state["collect"]["done"] and not state["curate"]["done"]
    assert run("loop.toml", "--set", "curate.min_reward=0").exit_code == 0


def test_a_recipe_ends_when_its_training_diverges(folder: Path) -> None:
    flags = set_flags((*REDUCED["quickstart"], "sft.learning_rate=1e38"))
    message = error_of("quickstart", *flags)
    assert "diverged at step 2" in message and "--learning-rate" in message
    state = json.loads((folder / "runs/quickstart/recipe.json").read_bytes())["stages"]
    assert state["curate"]["done"] and not state["sft"]["done"] and "eval" not in state
    assert not (folder / "runs/quickstart/sft/model.safetensors").exists()


def test_an_upload_is_a_stage_that_needs_a_login_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.toml").write_text(
        '[collect]\nenv = "wordle"\nnum_episodes = 2\n'
        '[publish]\ncommand = "push env"\nspec = "wordle"\nrepo_id = "ada/wordle"\n'
    )
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert "[publish] Uploading needs a login" in error_of("loop.toml")
    assert not Path("runs").exists()


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "accelerate" in error_of("quickstart")


def test_new_copies_a_recipe_with_its_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Runner().invoke(["new", "wordle"]).exit_code == 0
    assert Path("wordle.toml").read_text() == shipped_recipes()["wordle"]
    assert run("wordle.toml", "--dry-run").exit_code == 0
    again = Runner().invoke(["new", "wordle"])
    assert isinstance(again.exception, RunError)
    unknown = Runner().invoke(["new", "wordel"])
    assert isinstance(unknown.exception, ConfigError) and "'wordle'" in str(unknown.exception)
    listed = Runner().invoke(["new"]).stdout
    assert all(name in listed for name in REDUCED)
