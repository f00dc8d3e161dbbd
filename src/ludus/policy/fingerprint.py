"""A short fingerprint of a local model: its weights, tokenizer and chat template.

A run records it, so that it is not resumed with a model that was retrained in the same folder.
Files are sampled at many places instead of being read completely, and nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from ludus.policy import smollm2
from ludus.policy.model_ref import ModelKind, base_model_name, find_local_model

_DIGEST_BYTES = 6
_NUM_CHUNKS, _CHUNK_BYTES = 1024, 4096
"""4 MB of each file, in chunks that are close enough together to hit every weight matrix."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template*")
_FILE_PATTERNS = {
    ModelKind.FOLDER: ("*.safetensors", "pytorch_model*.bin", *_TOKENIZER_FILES),
    ModelKind.ADAPTER: ("adapter_*", *_TOKENIZER_FILES),
}


def fingerprint(name: str) -> str | None:
    """Return the fingerprint of a model on this disk; None for one on the Hub.

    A Hub model has no files before its download. If it got a fingerprint afterwards, a resumed run
    would differ from its first start.
    """
    try:
        return _compute_fingerprint(name, frozenset())
    except OSError:
        return None  # Loading the model reports what is wrong with it.


def _compute_fingerprint(name: str, visited: frozenset[str]) -> str | None:
    """Hash a model and, for an adapter, its base model; `visited` are the adapters on the way."""
    if name == smollm2.NAME:
        return smollm2.release_id()
    ref = find_local_model(name)
    if ref is None or ref.path in visited:
        return None
    path = Path(ref.path)
    files = (
        [path]
        if ref.kind is ModelKind.GGUF
        else sorted(file for pattern in _FILE_PATTERNS[ref.kind] for file in path.glob(pattern))
    )
    if not files:
        return None
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        for chunk in _sample_chunks(file):
            digest.update(chunk)
    if ref.kind is ModelKind.ADAPTER:
        base = _compute_fingerprint(base_model_name(ref), visited | {ref.path})
        digest.update((base or "").encode())
    return digest.hexdigest()


def _sample_chunks(file: Path) -> Iterator[bytes]:
    """Yield a small file completely; of a large one its start, its end and chunks between."""
    last = max(0, file.stat().st_size - _CHUNK_BYTES)
    step = max(_CHUNK_BYTES, last // _NUM_CHUNKS)
    with file.open("rb", buffering=0) as stream:
        for start in (*range(0, last, step), last):
            stream.seek(start)
            yield stream.read(_CHUNK_BYTES)
