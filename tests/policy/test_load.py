"""Loading of models, adapters and policies, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_tokenizers import CHATML, of_family, student

from ludus.errors import ConfigError, LudusError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.load import load, load_model, load_tokenizer
from policy.models import adapted, saved, tiny

IDS = torch.arange(3, 40)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(IDS).logits
    return output


def with_config(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def load_error(folder: Path) -> str:
    with pytest.raises(LudusError) as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_gives_the_model_that_was_saved(tmp_path: Path) -> None:
    loaded = load_model(str(saved(tmp_path)), dtype="float32")
    assert torch.equal(logits(loaded), logits(tiny(student())))
    assert not loaded.training


def test_a_policy_has_its_tokenizer_and_chat_format(tmp_path: Path) -> None:
    name = str(saved(tmp_path, of_family("qwen3")))
    policy = load(name, device="cpu", dtype="bf16")
    assert (policy.name, str(policy.model.dtype)) == (name, "torch.bfloat16")
    assert policy.chat_format == find_chat_format(policy.tokenizer)
    assert policy.tokenizer.get_vocab() == of_family("qwen3").get_vocab()


def test_eos_tokens_of_the_generation_config_stop_a_reply(tmp_path: Path) -> None:
    saved(tmp_path, of_family("qwen3"))
    known = find_chat_format(of_family("qwen3")).stop_token_ids
    config = json.loads((tmp_path / "generation_config.json").read_text())
    for eos, added in (([max(known), 7], {7}), (8, {8}), (None, set())):
        text = json.dumps(config | {"eos_token_id": eos})
        (tmp_path / "generation_config.json").write_text(text)
        assert load(str(tmp_path), device="cpu").chat_format.stop_token_ids == known | added


def test_an_adapter_is_merged_into_its_base(tmp_path: Path) -> None:
    from peft import PeftModel

    base = saved(tmp_path / "base")
    tuned = adapted(tmp_path / "tuned", base)
    loaded = load_model(str(tuned), dtype="float32")
    expected = PeftModel.from_pretrained(tiny(student()), tuned).eval()
    assert torch.allclose(logits(loaded), logits(expected), atol=1e-5)
    assert not torch.allclose(logits(loaded), logits(tiny(student())), atol=1e-2)
    assert not any("lora" in name for name, _ in loaded.named_parameters())


def test_an_adapter_over_an_adapter_is_merged_into_both(tmp_path: Path) -> None:
    first = adapted(tmp_path / "first", saved(tmp_path / "base"), seed=1)
    merged = load_model(str(first), dtype="float32")
    merged.save_pretrained(tmp_path / "merged")
    second = adapted(tmp_path / "second", tmp_path / "merged", seed=2)
    expected = logits(load_model(str(second), dtype="float32"))
    config = json.loads((second / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = merged.name_or_path
    (second / "adapter_config.json").write_text(json.dumps(config))
    assert merged.name_or_path == str(first)
    assert torch.allclose(logits(load_model(str(second), dtype="float32")), expected, atol=1e-5)


def test_an_adapter_without_tokenizer_has_that_of_its_base_model(tmp_path: Path) -> None:
    tuned = adapted(tmp_path / "tuned", saved(tmp_path / "base"))
    assert load_tokenizer(str(tuned)).chat_template == CHATML
    student(CHATML + " ").save_pretrained(tuned)
    assert load_tokenizer(str(tuned)).chat_template == CHATML + " "


def test_a_new_adapter_records_the_path_of_its_base_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import LoraConfig, get_peft_model

    saved(tmp_path / "runs" / "base")
    monkeypatch.chdir(tmp_path)
    config: Any = LoraConfig(target_modules="all-linear")
    model: Any = get_peft_model(load_model("runs/base"), config)
    assert model.peft_config["default"].base_model_name_or_path == str(tmp_path / "runs/base")


def test_an_adapter_of_another_model_is_rejected(tmp_path: Path) -> None:
    tuned = adapted(tmp_path / "tuned", saved(tmp_path / "base"))
    larger = tiny(student())
    larger.config.hidden_size = 64
    type(larger)(larger.config).save_pretrained(tmp_path / "base")
    assert load_error(tuned).startswith(f"The adapter of {tuned} cannot be read: ")


def test_a_folder_without_weights_is_rejected(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "training_args.bin").touch()
    assert "holds no weights" in load_error(tmp_path)


def test_a_folder_with_only_a_tokenizer_is_rejected(tmp_path: Path) -> None:
    student().save_pretrained(tmp_path)
    assert "holds no config.json" in load_error(tmp_path)


@pytest.mark.parametrize("content", [b"", b"damaged" * 100])
def test_damaged_weights_are_rejected(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert load_error(tmp_path).startswith(f"The weights of {tmp_path} cannot be read: ")


def test_a_damaged_config_is_rejected(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert load_error(tmp_path).startswith(f"The weights of {tmp_path} cannot be read: ")


def test_incomplete_weights_are_rejected(tmp_path: Path) -> None:
    with_config(saved(tmp_path), num_hidden_layers=3)
    message = load_error(tmp_path)
    assert "9 tensors" in message and "model.layers.2." in message


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "Qwen2VLForConditionalGeneration"])
def test_models_that_are_not_causal_lms_are_rejected(tmp_path: Path, architecture: str) -> None:
    with_config(saved(tmp_path), architectures=[architecture])
    assert architecture in load_error(tmp_path)


def test_an_unknown_architecture_is_rejected(tmp_path: Path) -> None:
    with_config(saved(tmp_path), model_type="nobody_knows")
    assert load_error(tmp_path).startswith(f"The weights of {tmp_path} cannot be read: ")


def test_custom_code_of_a_model_is_not_run(tmp_path: Path) -> None:
    with_config(saved(tmp_path), model_type="theirs", auto_map={"AutoConfig": "theirs.Theirs"})
    (tmp_path / "theirs.py").write_text("raise SystemExit('run')")
    assert "custom code" in load_error(tmp_path)


def test_an_unknown_device_is_rejected_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Unknown device 'gpu'"):
        load(str(tmp_path / "nowhere"), device="gpu")


def test_loading_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    tuned = adapted(tmp_path / "tuned", saved(tmp_path / "base"))
    capfd.readouterr()
    caplog.clear()
    load_model(str(tuned))
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_weights_that_are_not_finite_are_rejected(tmp_path: Path, value: float, dtype: str) -> None:
    model = tiny(student())
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = value
    model.save_pretrained(tmp_path)
    student().save_pretrained(tmp_path)
    for loader in (load, load_model):
        with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj\.weight") as caught:
            loader(str(tmp_path), device="cpu", dtype=dtype)
        assert "\n" not in str(caught.value)


def test_an_adapter_whose_weights_are_not_finite_is_rejected(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = adapted(tmp_path / "tuned", saved(tmp_path / "base")) / "adapter_model.safetensors"
    save_file({name: weight * torch.inf for name, weight in load_file(file).items()}, file)
    assert "not finite" in load_error(tmp_path / "tuned")
