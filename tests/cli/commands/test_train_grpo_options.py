"""Options of `ludus train grpo`: the config that they build, and invalid ones."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.train_cli import error_message, help_of, invoke_train, train
from ludus.rollout import SYSTEM_PROMPT
from ludus.train import Lora, TrainResult
from ludus.train.grpo import pipeline
from ludus.train.grpo.grpo_config import GRPOConfig

COMMAND = ("grpo", "wordle", "-m", "model", "-o", "out")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments of each call of the stage function, which is replaced."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def record_call(*args: Any, **kwargs: Any) -> TrainResult:
        calls.append((args, kwargs))
        return TrainResult(Path("out"), 0, None, 0.0, 0)

    monkeypatch.setattr(pipeline, "grpo", record_call)
    return calls


def parse_config(calls: list[Any], *options: str) -> GRPOConfig:
    done = invoke_train(*COMMAND, *options)
    assert done.exit_code == 0, (done.output, done.exception)
    config: GRPOConfig = calls[-1][0][3]
    return config


def test_without_options_the_config_is_the_default(calls: list[Any]) -> None:
    assert parse_config(calls) == GRPOConfig()
    args, kwargs = calls[-1]
    assert args[:3] == ("wordle", "model", Path("out")) and kwargs["overwrite"] is False


def test_every_option_reaches_its_config_field(calls: list[Any]) -> None:
    config = parse_config(
        calls,
        *(
            "--report-to",
            "none",
            "--steps",
            "3",
            "--groups",
            "2",
            "--group-size",
            "4",
            "--max-tokens",
            "77",
        ),
        *("--max-episode-tokens", "99", "--no-thinking"),
        *("--max-turns", "5", "--temperature", "0.9", "--top-p", "0.95", "--top-k", "20"),
        *("--beta", "0.04", "--learning-rate", "1e-5", "--batch-size", "16"),
        *("--zero-variance-groups", "keep"),
        *("--credit", "turn", "--gae-lambda", "0.5"),
        *("--vllm-mode", "colocate"),
        *("--reward-func", "mine:brief=0.5", "--reward-func", "mine:kind"),
        *("--eval-every", "10", "--eval-episodes", "12", "--early-stop"),
        *("--task", '{"length": 6}', "--dataset-config", '{"max_terms": 3}'),
        *("--system-prompt", "Play.", "--lora", "r=4", "--gradient-checkpointing"),
        *("--precision", "fp32", "--device", "cpu", "--checkpoint-every", "2m", "--seed", "7"),
        *("--target-kl", "0.1", "--no-importance-correction", "--keep", "last"),
        *("--max-rollbacks", "1", "--set", "warmup_steps=3"),
    )
    assert config == GRPOConfig(
        target_kl=0.1, importance_correction=False, keep="last", max_rollbacks=1,
        steps=3, groups=2, group_size=4, max_tokens=77, max_turns=5,
        max_episode_tokens=99, chat_template_kwargs={"enable_thinking": False},
        temperature=0.9, top_p=0.95, top_k=20, beta=0.04, learning_rate=1e-5, batch_size=16,
        zero_variance_groups="keep", credit="turn", gae_lambda=0.5,
        vllm_mode="colocate",
        reward_funcs=("mine:brief=0.5", "mine:kind"),
        eval_every=10, eval_episodes=12, early_stop=True,
        task={"length": 6, "dataset_config": {"max_terms": 3}}, system_prompt="Play.",
        report_to="none", lora=Lora(rank=4), gradient_checkpointing=True, precision="fp32",
        device="cpu", checkpoint_every=120.0, seed=7, overrides={"warmup_steps": 3},
    )  # fmt: skip


def test_an_empty_system_prompt_is_none(calls: list[Any]) -> None:
    assert parse_config(calls, "--system-prompt", "").system_prompt is None
    assert parse_config(calls).system_prompt == SYSTEM_PROMPT


def test_base_url_and_token_reach_the_config(calls: list[Any]) -> None:
    options = ("--base-url", "http://127.0.0.1:1", "--token", "secret", "--overwrite")
    config = parse_config(calls, *options)
    assert (config.base_url, config.token) == ("http://127.0.0.1:1", "secret")
    assert calls[-1][1]["overwrite"] is True


def test_the_next_command_has_the_options_of_the_training(calls: list[Any]) -> None:
    done = invoke_train(
        *COMMAND,
        *("--task", "length=6", "--task", '{"pool": "a=b"}'),
        *("--system-prompt", "", "--token", "secret"),
    )
    command = shlex.split(done.stdout.splitlines()[-1].removeprefix("Next: "))
    assert command[:3] == ["ludus", "eval", "wordle"]
    assert command[3:7] == ["--task", "length=6", "--task", "pool=a=b"]
    assert command[7:9] == ["--system-prompt", ""]
    assert command[9:] == ["-c", "hf:model", "-c", "hf:out", "-n", "100"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--steps", "0"), "--steps"),
        (("--group-size", "1"), "--group-size"),
        (("--beta", "-1"), "--beta"),
        (("--temperature", "0"), "--temperature"),
        (("--top-p", "1.5"), "1.5"),
        (("--gae-lambda", "0.5"), "--credit turn"),
        (("--credit", "turn", "--gae-lambda", "1.5"), "--gae-lambda"),
        (("--eval-episodes", "3", "--eval-every", "0"), "--eval-every"),
        (("--target-kl", "-1"), "--target-kl"),
        (("--task", '{"seed": 1}'), "--seed"),
        (("--curriculum", "length=6..4"), "--curriculum 'length=6..4'"),
        (("--curriculum", "lenght=4..6"), "'length'"),
        (("--curriculum", "length=4..6", "--task", '{"length": 5}'), "--task and --curriculum"),
        (("--lora", "r=0"), "--lora rank"),
        (("--set", "hub_token=x"), "HF_TOKEN"),
        (("--push-to-hub", "mine"), "'mine'"),
    ],
)
def test_invalid_options_print_one_line_and_write_nothing(
    options: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in error_message(invoke_train(*COMMAND, *options))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--zero-variance-groups", "drop"), '"skip", "keep"'),
        (("--credit", "token"), '"episode", "turn"'),
        (("--precision", "bf61"), '"bf16"'),
        (("--vllm-mode", "remote"), '"colocate", "server"'),
        (("--task", "[1]"), "--task: '[1]'"),
        (("--checkpoint-every", "soon"), "'soon'"),
        (("--epochs", "3"), "Unknown option: --epochs"),
        (("--steps", "many"), "--steps"),
        (("--set", "warmup_steps"), "key=value"),
    ],
)
def test_unparsable_options_exit_with_2(options: tuple[str, ...], words: str) -> None:
    done = invoke_train(*COMMAND, *options)
    assert done.exit_code == 2 and words in " ".join(done.stderr.split())


def test_help_names_the_methods_and_imports_nothing_heavy() -> None:
    assert "SFT, DPO, GRPO" in " ".join(invoke_train("--help").stdout.split())
    done = train("grpo", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    assert "wordle=0.7,catch=0.3 -m " in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"torch", "transformers", "trl", "datasets", "peft", "matplotlib", "numpy"}
    assert "cyclopts" in loaded and not loaded & heavy


def test_help_states_the_defaults_of_the_config() -> None:
    config, text = GRPOConfig(), help_of("grpo")
    for option, default in (
        ("--steps INT", config.steps),
        ("--beta FLOAT", config.beta or 0),
        ("--seed INT", config.seed),
    ):
        assert f"[default: {default}]" in text.partition(f" {option} ")[2][:160], option


def test_set_comes_after_flags_and_takes_settings_of_a_method(calls: list[Any]) -> None:
    config = parse_config(
        calls,
        *("--steps", "7", "--groups", "2", "--set", "groups=5", "--set", "top-k=3"),
        *("--set", "lora=r=4,targets=q_proj+v_proj,dropout=0.1"),
        *("--task", '{"length": 6, "deep": {"a": 1.5}}', "--task", "word=x"),
    )
    assert (config.steps, config.groups, config.top_k) == (7, 5, 3)
    assert config.lora == Lora(rank=4, target_modules=("q_proj", "v_proj"), dropout=0.1)
    assert config.task == {"length": 6, "word": "x", "deep": {"a": 1.5}}


def test_settings_come_from_flags_then_set_then_a_file(calls: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "grpo.toml"
    file.write_text(
        """
        steps = 3
        groups = 2
        seed = 4
        zero_variance_groups = "keep"
        lora = {r = 4, targets = ["q_proj", "v_proj"], dropout = 0.1}
        task = {length = 6, word = "5", deep = {a = 1.5}}
        set = {warmup_steps = 5, lr_scheduler_kwargs = {x = 1}}
        """
    )
    config = parse_config(
        calls, "--config", str(file), "--max-steps", "7", "--set", "groups=5", "--set", "top-k=3"
    )
    assert (config.steps, config.groups, config.seed, config.top_k) == (7, 5, 4, 3)
    assert config.zero_variance_groups == "keep"
    assert config.lora == Lora(rank=4, target_modules=("q_proj", "v_proj"), dropout=0.1)
    assert config.task == {"length": 6, "word": "5", "deep": {"a": 1.5}}
    assert config.overrides == {"warmup_steps": 5, "lr_scheduler_kwargs": {"x": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot be read"), ("steps =", "not valid TOML"), ("stesp = 3", "'steps'")],
)
def test_mistakes_in_a_file_of_options_are_one_line(
    tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "grpo.toml"
    if text is not None:
        file.write_text(text)
    done = invoke_train("grpo", "catch", "-m", "m", "-o", tmp_path / "out", "--config", file)
    assert f"--config {file}" in error_message(done) and message in error_message(done)


def test_names_of_trl_are_aliases(calls: list[Any]) -> None:
    config = parse_config(
        calls,
        *("--max-steps", "3", "--num-generations=8", "--max-completion-length", "99"),
        *("--per-device-train-batch-size", "2", "--use-vllm", "--lora", "--seed", "5"),
    )
    assert (config.steps, config.group_size, config.max_episode_tokens) == (3, 8, 99)
    assert (config.batch_size, config.vllm_mode, config.seed) == (2, "colocate", 5)
    assert config.lora == Lora()


def test_set_takes_hidden_options_and_fields_of_trl(calls: list[Any]) -> None:
    options = ("--set", "max-rollbacks=0", "--set", "warmup_steps=3", "--set", "adam_beta1=0.8")
    config = parse_config(calls, *options)
    assert config.max_rollbacks == 0
    assert config.overrides == {"warmup_steps": 3, "adam_beta1": 0.8}
