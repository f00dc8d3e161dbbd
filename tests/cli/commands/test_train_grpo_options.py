"""What the options of `ludus train grpo` mean, and what it refuses before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ludus.train as stages
from cli.train_cli import invoke_train, error_message, train
from ludus.rollout import SYSTEM_PROMPT
from ludus.train import Lora, TrainResult
from ludus.train.grpo.grpo_config import GRPOConfig

COMMAND = ("grpo", "wordle", "-m", "model", "-o", "out")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What the stage is called with; it is not played."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def stage(*given: Any, **more: Any) -> TrainResult:
        calls.append((given, more))
        return TrainResult(Path("out"), 0, None, 0.0, 0)

    monkeypatch.setattr(stages, "grpo", stage)
    return calls


def parse_config(asked: list[Any], *options: str) -> GRPOConfig:
    done = invoke_train(*COMMAND, "--report-to", "none", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    found: GRPOConfig = asked[-1][0][3]
    return found


def test_without_options_the_settings_are_the_usual_ones(asked: list[Any]) -> None:
    assert parse_config(asked) == GRPOConfig()
    given, more = asked[-1]
    assert given[:3] == ("wordle", "model", Path("out"))
    assert (more["base_url"], more["token"], more["overwrite"]) == (None, None, False)


def test_every_option_reaches_its_setting(asked: list[Any]) -> None:
    found = parse_config(
        asked,
        *("--steps", "3", "--groups", "2", "--group-size", "4", "--max-tokens", "77"),
        *("--max-episode-tokens", "99", "--no-thinking"),
        *("--max-turns", "5", "--temperature", "0.9", "--top-p", "0.95", "--top-k", "20"),
        *("--beta", "0.04", "--learning-rate", "1e-5", "--batch-size", "16"),
        *(
            "--zero-variance-groups",
            "resample",
            "--max-resamples",
            "3",
            "--rollouts",
            "fast",
            "--vllm-mode",
            "colocate",
        ),
        *("--reward-func", "mine:brief=0.5", "--reward-func", "mine:kind"),
        *("--eval-every", "10", "--eval-episodes", "12", "--early-stop"),
        *("--task", '{"length": 6}', "--dataset-config", '{"max_terms": 3}'),
        *("--system-prompt", "Play.", "--lora", "--lora-rank", "4", "--gradient-checkpointing"),
        *("--precision", "fp32", "--device", "cpu", "--checkpoint-every", "2m", "--seed", "7"),
        *("--set", "warmup_steps=3"),
    )
    assert found == GRPOConfig(
        steps=3, groups=2, group_size=4, max_tokens=77, max_turns=5,
        max_episode_tokens=99, chat_template_kwargs={"enable_thinking": False},
        temperature=0.9, top_p=0.95, top_k=20, beta=0.04, learning_rate=1e-5, batch_size=16,
        equal="resample", resamples=3, rollouts="fast", vllm="colocate",
        rewards=("mine:brief=0.5", "mine:kind"),
        eval_every=10, eval_episodes=12, early_stop=True,
        task={"length": 6, "dataset_config": {"max_terms": 3}}, system_prompt="Play.",
        lora=Lora(rank=4), gradient_checkpointing=True, precision="fp32", device="cpu",
        checkpoint_every=120.0, seed=7, overrides={"warmup_steps": "3"},
    )  # fmt: skip


def test_an_empty_system_prompt_is_none_at_all(asked: list[Any]) -> None:
    assert parse_config(asked, "--system-prompt", "").system_prompt is None
    assert parse_config(asked).system_prompt == SYSTEM_PROMPT


def test_where_the_environment_is_served_is_no_setting_of_the_training(asked: list[Any]) -> None:
    parse_config(asked, "--base-url", "http://127.0.0.1:1", "--token", "secret", "--overwrite")
    more = asked[-1][1]
    assert (more["base_url"], more["token"]) == ("http://127.0.0.1:1", "secret")
    assert more["overwrite"] is True


def test_what_comes_next_is_played_as_it_was_trained(asked: list[Any]) -> None:
    done = invoke_train(
        *COMMAND, "--task", '{"length": 6}', "--system-prompt", "", "--token", "secret"
    )
    assert done.stdout.splitlines()[-1] == (
        """Next: ludus eval wordle --task '{"length": 6}' --system-prompt '' """
        "-c hf:model -c hf:out -n 100"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--steps", "0"), "--steps 0 is too little: 1 is the least."),
        (("--group-size", "1"), "--group-size 1 is too little: 2 is the least."),
        (("--beta", "-1"), "--beta -1.0 is too little: 0 is the least."),
        (("--temperature", "0"), "--temperature 0 gives every member of a group the same reply"),
        (("--top-p", "1.5"), "1.5"),
        (
            ("--max-resamples", "3"),
            "--max-resamples means nothing without --zero-variance-groups resample.",
        ),
        (("--zero-variance-groups", "resample", "--rollouts", "trl"), "TRL's loop plays only once"),
        (("--eval-episodes", "3"), "--eval-episodes means nothing without --eval-every."),
        (("--task", '{"seed": 1}'), "The seed of each episode comes from --seed"),
        (("--lora-rank", "4"), "--lora-rank says how an adapter is made. Add --lora"),
        (("--set", "hub_token=x"), "--set hub_token would be written down. Set HF_TOKEN"),
        (("--set", "warmup_steps"), "--set warmup_steps is no assignment."),
        (("--precision", "bf61"), "--precision bf61 is unknown. Did you mean 'bf16'?"),
        (("--private",), "--private is about the Hub. Add --push-to-hub"),
        (("--push-to-hub", "mine"), "'mine' cannot be the name of a model on the Hub."),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in error_message(invoke_train(*COMMAND, *options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--zero-variance-groups", "drop"), "'drop' is not one of 'skip', 'resample', 'keep'"),
        (("--rollouts", "slow"), "'slow' is not one of 'fast', 'trl'"),
        (("--vllm-mode", "remote"), "'remote' is not one of 'colocate', 'server'"),
        (("--task", "[1]"), "--task wants a JSON object."),
        (("--checkpoint-every", "soon"), "'soon' is no time"),
        (("--epochs", "3"), "No such option: --epochs"),
        (("--steps", "many"), "valid integer"),
    ],
)
def test_what_cannot_be_read_ends_with_2(options: tuple[str, ...], words: str) -> None:
    done = invoke_train(*COMMAND, *options)
    assert done.exit_code == 2 and words in " ".join(done.stderr.split())


def test_the_three_methods_are_named_and_help_loads_nothing_heavy() -> None:
    told = " ".join(invoke_train("--help").stdout.split())
    assert "imitation (sft), preferences (dpo), or trial and reward (grpo)." in told
    done = train("grpo", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    assert "ludus train grpo wordle=0.7,catch=0.3 -m Qwen/Qwen3-0.6B" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"torch", "transformers", "trl", "datasets", "peft", "matplotlib", "numpy", "rich"}
    assert "typer" in loaded and not loaded & heavy


def test_what_is_not_said_is_told_as_it_will_be() -> None:
    """Defaults stand in the command and in the settings: they must not part."""
    usual, told = GRPOConfig(), " ".join(invoke_train("grpo", "--help").stdout.split())
    assert f"how often, at the most. [default: ({usual.resamples})]" in told
    assert f"Episodes of such a test. [default: ({usual.eval_episodes})]" in told
    assert f"move away from the model. [default: ({usual.beta or 0})]" in told
