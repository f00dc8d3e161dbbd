"""A hash of text that is the same in every process and on every machine."""

from __future__ import annotations

import hashlib


def stable_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process, unlike Python's own."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
