"""Which model it is, as a short word: another training changes it, another day does not.

It is told by the weights, and by how they are spoken to: the tokenizer and the chat template.

A run records it, so that it is never gone on with by a model that was trained anew in the same
folder. Files are looked into here and there, never read as a whole, and nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from ludus.policy import smollm2
from ludus.policy.model_ref import ModelKind, ModelRef, base_model_name, find_local_model

_DIGEST_BYTES = 6
_NUM_CHUNKS, _CHUNK_BYTES = 1024, 4096
"""Many and small: 4 MB of each file, close enough together to hit every matrix in it."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template*")
_FILE_PATTERNS = {
    ModelKind.FOLDER: ("*.safetensors", "pytorch_model*.bin", *_TOKENIZER_FILES),
    ModelKind.ADAPTER: ("adapter_*", *_TOKENIZER_FILES),
}


def fingerprint(name: str) -> str | None:
    """Of the model of that name, if it is on this disk.

    Of a model on the Hub none is known before it is fetched; one that is known only afterwards
    would part the first start of a run from the second.
    """
    try:
        return _compute(name, frozenset())
    except OSError:
        return None  # Who loads the model will say what is wrong with it.


def _compute(name: str, visited: frozenset[str]) -> str | None:
    if name == smollm2.NAME:
        return smollm2.release_id()
    source = find_local_model(name)
    files = [] if source is None or source.path in visited else sorted(_model_files(source))
    if source is None or not files:
        return None
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        for piece in _sample_chunks(file):
            digest.update(piece)
    if source.kind is ModelKind.ADAPTER:
        below = _compute(base_model_name(source), visited | {source.path})
        digest.update((below or "").encode())
    return digest.hexdigest()


def _model_files(source: ModelRef) -> list[Path]:
    path = Path(source.path)
    if source.kind is ModelKind.GGUF:
        return [path]
    return [file for pattern in _FILE_PATTERNS[source.kind] for file in path.glob(pattern)]


def _sample_chunks(file: Path) -> Iterator[bytes]:
    """The whole of a small file; else its beginning, its end, and many places between."""
    last = max(0, file.stat().st_size - _CHUNK_BYTES)
    step = max(_CHUNK_BYTES, last // _NUM_CHUNKS)
    with file.open("rb", buffering=0) as stream:
        for start in (*range(0, last, step), last):
            stream.seek(start)
            yield stream.read(_CHUNK_BYTES)
