"""Which stages run again: after a change of settings, inputs or code, and after a kill."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import ludus
from ludus.data.files import lock_dir
from ludus.errors import OtherSettings, RunError
from ludus.recipe.fingerprint import RecipeState
from ludus.recipe.recipe_file import Recipe, Stage, read_recipe
from ludus.recipe.runner import RecipeEvent, StagePlan, plan_recipe, run_recipe

LOOP = """
[collect]
env = "my_env.py:Guess"
num_episodes = 5
tasks = "tasks.jsonl"

[sft]
data = "{collect}"
steps = 3

[eval]
candidate = "hf:{sft}"
"""


class Killed(BaseException):
    """Stands in for a process that ends in the middle of a stage."""


@dataclass
class World:
    """Runs recipes whose commands write one file, and records what happened."""

    folder: Path
    ran: list[str] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    fails: dict[str, BaseException | int] = field(default_factory=dict)
    results: int = 0

    def __post_init__(self) -> None:
        (self.folder / "loop.toml").write_text(LOOP)
        (self.folder / "tasks.jsonl").write_text("{}\n")
        (self.folder / "my_env.py").write_text("class Guess: ...\n")

    def run(self, *overrides: str, selected: tuple[str, ...] = ("collect", "sft", "eval")) -> int:
        self.ran, self.kept, self.reasons = [], [], {}
        recipe = self.recipe(*overrides)
        outputs, state = self.outputs(recipe), RecipeState.load(recipe.output_dir)
        plans = plan_recipe(recipe, outputs, state, selected)
        return run_recipe(recipe, outputs, plans, self.run_stage, self.show)

    def plan(self, *overrides: str) -> dict[str, str]:
        recipe = self.recipe(*overrides)
        state, outputs = RecipeState.load(recipe.output_dir), self.outputs(recipe)
        plans = plan_recipe(recipe, outputs, state, [stage.name for stage in recipe.stages])
        return {plan.stage.name: plan.reason for plan in plans}

    def recipe(self, *overrides: str) -> Recipe:
        return read_recipe("loop.toml", overrides=overrides)

    def outputs(self, recipe: Recipe) -> dict[str, Path | None]:
        return {stage.name: recipe.output_dir / stage.name for stage in recipe.stages}

    def run_stage(self, stage: Stage) -> int:
        self.ran.append(stage.name)
        folder = Path("runs/loop") / stage.name
        failure = self.fails.pop(stage.name, 0)
        if isinstance(failure, BaseException):
            folder.mkdir(parents=True, exist_ok=True)
            raise failure
        folder.mkdir(parents=True, exist_ok=True)
        self.results += 1
        (folder / "result").write_text(f"{stage.options} {self.results}")
        return failure

    def show(self, event: RecipeEvent, plan: StagePlan, detail: str) -> None:
        if event == "started":
            self.reasons[plan.stage.name] = plan.reason
        elif event == "set aside":
            self.kept.append(Path(detail))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.run()
    return world


def test_a_second_run_has_nothing_to_do(world: World) -> None:
    assert world.ran == ["collect", "sft", "eval"]
    world.run()
    assert world.ran == []
    assert world.plan() == {"collect": "", "sft": "", "eval": ""}


def test_a_changed_setting_runs_its_stage_and_those_that_use_the_result(world: World) -> None:
    plan = world.plan("sft.steps=4")
    assert plan["collect"] == "" and "steps" in plan["sft"] and "sft" in plan["eval"]
    world.run("sft.steps=4")
    assert world.ran == ["sft", "eval"]
    # The command of the first decides whether it goes on; the second has other inputs.
    assert world.kept == [Path("runs/loop/earlier/eval-1")]


def test_a_result_of_other_settings_that_cannot_be_continued_is_kept(world: World) -> None:
    world.fails["sft"] = OtherSettings("other steps")
    world.run("sft.steps=4")
    assert world.ran == ["sft", "sft", "eval"]
    earlier = Path("runs/loop/earlier/sft-1")
    assert earlier in world.kept and "'steps': 3" in (earlier / "result").read_text()


def test_options_that_do_not_affect_the_result_run_nothing(world: World) -> None:
    assert not any(world.plan("collect.concurrency=8", "sft.device=cpu").values())


@pytest.mark.parametrize("file", ["tasks.jsonl", "my_env.py"])
def test_a_changed_file_runs_the_stage_that_names_it(world: World, file: str) -> None:
    Path(file).write_text("# changed\n")
    world.run()
    assert world.ran == ["collect", "sft", "eval"]
    assert file in world.reasons["collect"]


@pytest.mark.parametrize("spec", ["maze:Maze", "worlds.maze:Maze"], ids=["module", "namespace"])
def test_changed_code_of_an_importable_environment_runs_its_stages(
    world: World, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a console script starts: without the current folder.
    monkeypatch.setattr(
        "sys.path", [path for path in sys.path if path not in ("", str(Path.cwd()))]
    )
    file = Path(spec.partition(":")[0].replace(".", "/") + ".py")
    file.parent.mkdir(exist_ok=True)
    file.write_text("class Maze: ...\n")
    override = f"collect.env={spec}"
    world.run(override)
    world.run(override)
    assert world.ran == []
    file.write_text("class Maze: ...  # changed\n")
    world.run(override)
    assert world.ran == ["collect", "sft", "eval"] and "maze" in world.reasons["collect"]


def test_a_changed_reward_function_runs_its_stage(world: World) -> None:
    Path("rewards.py").write_text("def brief(episode): return 0\n")
    override = 'sft.reward_func=["rewards:brief=0.5"]'
    world.run(override)
    Path("rewards.py").write_text("def brief(episode): return 1\n")
    world.run(override)
    assert world.ran == ["sft", "eval"] and "rewards" in world.reasons["sft"]


@pytest.mark.parametrize(
    ("option", "name"),
    [("data", "data/lr=3e-4"), ("model", "hf:data/lr=3e-4"), ("candidate", "a=hf:data/lr=3e-4")],
)
def test_an_input_may_have_an_equals_sign_in_its_path(world: World, option: str, name: str) -> None:
    data = Path("data/lr=3e-4")
    data.mkdir(parents=True)
    (data / "rows").write_text("1")
    override = f"sft.{option}={name}"
    world.run(override)
    (data / "rows").write_text("2")
    assert world.plan(override)["sft"] == "input changed: data/lr=3e-4"


def test_a_model_is_not_looked_for_among_the_runs(world: World) -> None:
    """A recipe that is named as its model writes into that folder itself."""
    override = "sft.model=loop"
    world.run(override)
    assert world.plan(override)["sft"] == ""


def test_what_a_stage_writes_itself_is_no_input(world: World) -> None:
    override = 'sft.report_to="wandb"'
    world.run(override)
    Path("wandb").mkdir()
    (Path("wandb") / "file").write_text("written by the stage")
    assert not any(world.plan(override).values())


def test_a_path_below_the_home_folder_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(world.folder))
    override = 'collect.tasks="~/tasks.jsonl"'
    world.run(override)
    Path("tasks.jsonl").write_text('{"seed": 2}\n')
    world.run(override)
    assert world.ran == ["collect", "sft", "eval"]


def test_another_version_of_ludus_runs_everything(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ludus, "__version__", "99.0")
    world.run()
    assert world.ran == ["collect", "sft", "eval"] and "ludus" in world.reasons["collect"]


def test_results_that_were_removed_or_edited_are_noticed(world: World) -> None:
    Path("runs/loop/collect/result").write_text("edited")
    world.run()
    assert world.ran == ["sft", "eval"]
    Path("runs/loop/eval/result").unlink()
    Path("runs/loop/eval").rmdir()
    world.run()
    assert world.ran == ["eval"]


def test_a_result_that_is_only_touched_runs_nothing(world: World) -> None:
    Path("runs/loop/collect/result").touch()
    world.run()
    assert world.ran == []


def test_a_killed_run_goes_on_with_the_stage_that_was_running(world: World) -> None:
    world.fails["sft"] = Killed()
    with pytest.raises(Killed):
        world.run("sft.steps=4")
    assert world.plan("sft.steps=4")["sft"] == "resumes"
    world.run("sft.steps=4")
    assert world.ran == ["sft", "eval"] and Path("runs/loop/earlier/sft-1") not in world.kept


def test_a_stage_that_fails_ends_the_run_with_its_exit_code(world: World) -> None:
    world.fails["sft"] = 130
    assert world.run("sft.steps=4") == 130
    assert world.ran == ["sft"]


def test_stages_that_are_not_selected_are_used_as_they_are(world: World) -> None:
    world.run("collect.num_episodes=6", "sft.steps=4", selected=("sft", "eval"))
    assert world.ran == ["sft", "eval"]


def test_secrets_are_not_stored(world: World) -> None:
    world.run("collect.token=very-secret")
    assert "very-secret" not in Path("runs/loop/recipe.json").read_text()


def test_only_one_process_runs_a_recipe(world: World) -> None:
    with lock_dir(Path("runs/loop")), pytest.raises(RunError, match="Another process"):
        world.run()


def test_a_damaged_state_is_named(world: World) -> None:
    Path("runs/loop/recipe.json").write_text('{"version": 1, "stages": 3}')
    with pytest.raises(RunError, match=r"recipe\.json"):
        world.run()
