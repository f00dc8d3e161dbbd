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
from ludus.policy.source import Kind, Source, base_name, here

_LENGTH = 6
_SAMPLES, _SAMPLE = 1024, 4096
"""Many and small: 4 MB of each file, close enough together to hit every matrix in it."""
_SPEECH = ("tokenizer.json", "tokenizer_config.json", "chat_template*")
_FILES = {
    Kind.FOLDER: ("*.safetensors", "pytorch_model*.bin", *_SPEECH),
    Kind.ADAPTER: ("adapter_*", *_SPEECH),
}


def fingerprint(name: str) -> str | None:
    """Of the model of that name, if it is on this disk.

    Of a model on the Hub none is known before it is fetched; one that is known only afterwards
    would part the first start of a run from the second.
    """
    try:
        return _of(name, frozenset())
    except OSError:
        return None  # Who loads the model will say what is wrong with it.


def _of(name: str, above: frozenset[str]) -> str | None:
    if name == smollm2.NAME:
        return smollm2.edition()
    source = here(name)
    files = [] if source is None or source.path in above else sorted(_files(source))
    if source is None or not files:
        return None
    digest = blake2b(digest_size=_LENGTH)
    for file in files:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        for piece in _pieces(file):
            digest.update(piece)
    if source.kind is Kind.ADAPTER:
        below = _of(base_name(source), above | {source.path})
        digest.update((below or "").encode())
    return digest.hexdigest()


def _files(source: Source) -> list[Path]:
    path = Path(source.path)
    if source.kind is Kind.GGUF:
        return [path]
    return [file for pattern in _FILES[source.kind] for file in path.glob(pattern)]


def _pieces(file: Path) -> Iterator[bytes]:
    """The whole of a small file; else its beginning, its end, and many places between."""
    last = max(0, file.stat().st_size - _SAMPLE)
    step = max(_SAMPLE, last // _SAMPLES)
    with file.open("rb", buffering=0) as stream:
        for start in (*range(0, last, step), last):
            stream.seek(start)
            yield stream.read(_SAMPLE)
