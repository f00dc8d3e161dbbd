"""Find a model by its name: a folder, an adapter, a Hub id, or `smollm2`.

Nothing is loaded here, and neither torch nor transformers is imported for local models: importing
torch takes seconds, and a mistyped name should be reported before that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

from ludus.data.hub import is_hub_id
from ludus.errors import ConfigError, closest_match, similar_path_hint
from ludus.policy import smollm2
from ludus.policy.device import check_device, check_dtype
from ludus.policy.hf_loading import require_transformers, suppress_hf_logging

HUB_TIMEOUT_S = 10.0
"""How long to wait for the Hub's answer whether it has a model."""

ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = ("adapter_*", "*token*", "vocab*", "merges*", "*.jinja")
_DIGEST_BYTES = 6
_NUM_CHUNKS, _CHUNK_BYTES = 1024, 4096
"""4 MB of each file, in chunks that are close enough together to hit every weight matrix."""


class ModelKind(StrEnum):
    FOLDER = "folder"
    ADAPTER = "adapter"
    """A folder with a LoRA adapter, whose config names the base model."""
    HUB = "hub"


_WEIGHT_PATTERNS = {
    ModelKind.FOLDER: ("*.safetensors", "pytorch_model*.bin"),
    ModelKind.ADAPTER: ("adapter_model.*",),
}
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template*")
_FINGERPRINT_PATTERNS = {
    ModelKind.FOLDER: (*_WEIGHT_PATTERNS[ModelKind.FOLDER], *_TOKENIZER_FILES),
    ModelKind.ADAPTER: ("adapter_*", *_TOKENIZER_FILES),
}


@dataclass(frozen=True, slots=True)
class ModelRef:
    """The location of a model."""

    name: str
    """As the user wrote it."""
    kind: ModelKind
    path: str
    """The folder, or the Hub id."""
    cache_only: bool = False
    """The Hub cannot be reached, so only its local cache can be used."""

    @property
    def loading_kwargs(self) -> dict[str, bool]:
        """Arguments for `from_pretrained`: a local model is not looked up on the Hub."""
        local_files_only = self.cache_only or self.kind is not ModelKind.HUB
        return {"local_files_only": local_files_only, "trust_remote_code": False}

    @property
    def portable_name(self) -> str:
        """A name that is valid from any working directory, for an adapter's config."""
        if self.kind is ModelKind.HUB or self.name == smollm2.NAME:
            return self.name
        return str(Path(self.path).resolve())

    @property
    def has_tokenizer(self) -> bool:
        """Whether a folder has a tokenizer; an adapter may use its base model's instead."""
        return any(Path(self.path).glob("tokenizer*"))


def find_local_model(name: str) -> ModelRef | None:
    """Return the model of that name on this disk, if there is one. Uses no network."""
    path = Path(expand_home(name))
    if name and path.is_dir():
        is_adapter = (path / ADAPTER_CONFIG).is_file()
        return ModelRef(name, ModelKind.ADAPTER if is_adapter else ModelKind.FOLDER, str(path))
    if path.is_file():
        raise ConfigError(f"{name} is a file. Name the model's folder, or a model on the Hub.")
    return None


def expand_home(name: str) -> str:
    """Expand `~` in a model's name: shells do not do so after a colon or an equals sign."""
    try:
        return str(Path(name).expanduser()) if name.startswith("~") else name
    except RuntimeError:
        raise ConfigError(f"{name}: there is no such user here. Write the full path.") from None


def base_model_name(adapter: ModelRef) -> str:
    """Read the name of the base model from an adapter's config."""
    try:
        config = json.loads((Path(adapter.path) / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        name = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    if not name or not isinstance(name, str):
        raise ConfigError(
            f"The {ADAPTER_CONFIG} of {adapter.name} names no base model. Add its "
            "base_model_name_or_path, or name the model itself."
        )
    return name


def model_chain(name: str) -> Iterator[ModelRef]:
    """Yield the references of a model and of an adapter's base models. Uses no network.

    What is not on this disk, and `smollm2`, are of the kind HUB. The Hub's cache is ignored: it is
    filled by the first run, so that answers would change between a run and its resumption.
    """
    visited = set()
    while True:
        local = None if name == smollm2.NAME else find_local_model(name)
        ref = local or ModelRef(name, ModelKind.HUB, name)
        if ref.path in visited:  # Configs may refer to each other in a circle.
            return
        visited.add(ref.path)
        yield ref
        if ref.kind is not ModelKind.ADAPTER:
            return
        name = base_model_name(ref)


def check_model_name(name: str) -> None:
    """Raise unless a name refers to a local model or could be a Hub id. Uses no network."""
    if name == smollm2.NAME or find_local_model(name) is not None:
        return
    if not is_hub_id(name):
        hint = similar_path_hint(name) or f"Name a model's folder, org/name, or {smollm2.NAME}."
        raise ConfigError(f"There is no model {name!r}: no such folder or file. {hint}")
    if "/" not in name and closest_match(name.lower(), [smollm2.NAME]):
        raise ConfigError(f"There is no model {name!r}. Did you mean {smollm2.NAME!r}?")


def check_model(name: str, *, device: str | None = None, dtype: str | None = None) -> None:
    """Raise `ConfigError` if the referenced model, device or dtype is known to be unusable."""
    check_device(device)
    check_dtype(dtype)
    adapter = None
    for ref in model_chain(name):
        try:
            check_model_name(ref.name)
            check_model_files(ref)
        except ConfigError as error:
            if adapter is None:
                raise
            raise ConfigError(f"{adapter.name} is an adapter over {ref.name}. {error}") from None
        adapter = ref


def check_model_files(ref: ModelRef) -> None:
    """Raise if a referenced folder lacks its config, or a folder or adapter its weights."""
    folder = Path(ref.path)
    if ref.kind is ModelKind.FOLDER and not (folder / "config.json").is_file():
        raise ConfigError(
            f"{ref.name} holds no config.json, so it is not a model. Name a folder written by "
            "`save_pretrained`."
        )
    patterns = _WEIGHT_PATTERNS.get(ref.kind, ())
    if patterns and not any(any(folder.glob(pattern)) for pattern in patterns):
        raise ConfigError(
            f"{ref.name} holds no weights: there is no .safetensors file in it. Was its "
            "training stopped before it ended?"
        )


def fingerprint_model(name: str) -> str | None:
    """Return a short fingerprint of a local model: its weights, tokenizer and chat template.

    A run records it, and is not resumed if the model in the folder was retrained. Files are sampled
    at many places instead of being read completely. None for a model on the Hub: it has no files
    before its download, so that a resumed run would differ from its first start.
    """
    if name == smollm2.NAME:
        return smollm2.release_id()
    digest, num_files = blake2b(digest_size=_DIGEST_BYTES), 0
    try:
        for ref in model_chain(name):
            if ref.name == smollm2.NAME:
                digest.update(smollm2.release_id().encode())
            path, patterns = Path(ref.path), _FINGERPRINT_PATTERNS.get(ref.kind, ())
            files = sorted(file for pattern in patterns for file in path.glob(pattern))
            for file in files:
                num_files += 1
                digest.update(f"{file.name} {file.stat().st_size}\n".encode())
                for chunk in sample_chunks(file):
                    digest.update(chunk)
    except OSError:
        return None  # Loading the model reports what is wrong with it.
    return digest.hexdigest() if num_files else None


def sample_chunks(file: Path) -> Iterator[bytes]:
    """Yield the bytes of a file to fingerprint: all of a small one, chunks of a large one."""
    last = max(0, file.stat().st_size - _CHUNK_BYTES)
    step = max(_CHUNK_BYTES, last // _NUM_CHUNKS)
    with file.open("rb", buffering=0) as stream:
        for start in (*range(0, last, step), last):
            stream.seek(start)
            yield stream.read(_CHUNK_BYTES)


def resolve_model(name: str) -> ModelRef:
    """Find the model of that name; `smollm2` is downloaded first if necessary.

    An existing folder is never looked up on the Hub. (For a folder called smollm2 write ./smollm2.)
    """
    if name == smollm2.NAME:
        return ModelRef(name, ModelKind.FOLDER, str(smollm2.model_folder()))
    if (local := find_local_model(name)) is not None:
        return local
    check_model_name(name)
    require_transformers("Using a model on the Hub")
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache

    hub = ModelRef(name, ModelKind.HUB, name)
    with suppress_hf_logging():
        try:
            # Once: the loaders themselves would retry for most of a minute.
            info = HfApi(library_name="ludus").model_info(name, timeout=HUB_TIMEOUT_S)
        except Exception as error:
            refusals = ("RepositoryNotFoundError", "HFValidationError")
            if any(_is_caused_by(error, refusal) for refusal in refusals):
                raise ConfigError(
                    f"There is no folder {name!r} here, and no model of that name on the Hub that "
                    "may be read. Check the name; a private one needs `hf auth login`."
                ) from None
            # Any other error means that the Hub could not be reached.
            cached = try_to_load_from_cache(name, ADAPTER_CONFIG)
            if isinstance(cached, str):
                return ModelRef(name, ModelKind.ADAPTER, str(Path(cached).parent), cache_only=True)
            return replace(hub, cache_only=True)
        if not any(file.rfilename == ADAPTER_CONFIG for file in info.siblings or ()):
            return hub
        try:
            folder = snapshot_download(
                name, allow_patterns=list(_ADAPTER_FILES), library_name="ludus"
            )
        except Exception as error:
            raise model_load_error(hub, "adapter", error) from None
    return ModelRef(name, ModelKind.ADAPTER, str(folder))


def resolve_base_model(adapter: ModelRef) -> ModelRef:
    """Find the base model of an adapter."""
    name = base_model_name(adapter)
    try:
        base = resolve_model(name)
    except ConfigError as error:
        raise ConfigError(f"{adapter.name} is an adapter over {name}. {error}") from None
    if base.kind is ModelKind.ADAPTER and Path(base.path).resolve() == Path(adapter.path).resolve():
        raise ConfigError(f"{adapter.name} is an adapter that names itself as its base model.")
    return base


def model_load_error(ref: ModelRef, part: str, error: Exception) -> ConfigError:
    """The error, in one line, that a `part` of a model (its weights, ...) could not be loaded."""
    name, message = ref.name, next(iter(str(error).splitlines()), "") or type(error).__name__
    if "trust_remote_code" in str(error):
        text = f"{name} ships custom code for its {part}, which Ludus does not run."
    elif _is_caused_by(error, "GatedRepoError"):
        text = f"{name} is gated on the Hub. Ask for access on its page, then `hf auth login`."
    elif ref.kind is ModelKind.HUB and ref.cache_only:
        text = (
            f"There is no folder {name} here, the Hub cannot be reached, and {name} is not in its "
            "cache. Name a folder, or try again when the Hub can be reached."
        )
    else:
        text = f"The {part} of {name} cannot be read: {message}"
    return ConfigError(text)


def _is_caused_by(error: BaseException | None, class_name: str) -> bool:
    """Compare by name: the class may belong to a package that is not installed."""
    while error is not None:
        if class_name in {base.__name__ for base in type(error).__mro__}:
            return True
        error = error.__cause__ or error.__context__
    return False
