"""Checksums of files."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from ludus.data.files import file_digest


def test_the_digest_is_the_sha256_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one" * 500_000)
    (tmp_path / "b").write_bytes(b"two")
    assert file_digest(tmp_path / "a") == sha256(b"one" * 500_000).hexdigest()
    assert (
        file_digest(tmp_path / "a", tmp_path / "b") == sha256(b"one" * 500_000 + b"two").hexdigest()
    )
