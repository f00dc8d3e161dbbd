"""Read the samples of an Inspect AI log, and the attachments of its samples.

A `.eval` file is a zip archive with one member per sample, which newer versions compress with
zstandard; one sample is loaded at a time. A `.json` log is a single document.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

from pydantic_core import from_json

from ludus.curation.importers.base import (
    FormatError,
    UnreadableRecord,
    describe_placeholder,
    require_object,
)
from ludus.data.json_files import MAX_LINE_BYTES
from ludus.data.tool_schema import JsonObject
from ludus.errors import MissingExtra, RunError

# The names of logs begin with a date, unlike those of other JSON files that Inspect writes.
_JSON_LOG = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}[:-]\d{2}[:-]\d{2}.*\.json")
_ATTACHMENT_PREFIX = "attachment://"
_ZIP_MAGIC = b"PK\x03\x04"
_ZSTD_METHOD = 93
_SAMPLE_MEMBER = re.compile(r"samples/.+_epoch_\d+\.json", re.DOTALL)
_SPLIT_SAMPLE_MEMBER = re.compile(r"samples/.+_epoch_\d+/sample\.json", re.DOTALL)
# The header is written last. Until then, the first member has the same fields.
_HEADER_MEMBERS = ("header.json", "_journal/start.json")
_LOCAL_HEADER_BYTES = 30
# A member may be larger, up to `MAX_LINE_BYTES`, if it takes at least a hundredth of that in the
# archive: a few kilobytes can expand to gigabytes.
_MAX_MEMBER_BYTES = 32 << 20
_MAX_COMPRESSION_RATIO = 100
_READ_BYTES = 4096
# Of one member: `{}` takes three bytes with its comma, and thirty times as much once it is parsed.
_MAX_VALUES = 1_000_000
_STRING_OR_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([{\[,])', re.DOTALL)
# Raised by zipfile for damaged archives; a negative offset is an OSError.
_ZIP_ERRORS = (BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError)


def is_inspect_log(file: Path) -> bool:
    """Whether a file is an Inspect AI log, by its name."""
    return file.suffix == ".eval" or _JSON_LOG.fullmatch(file.name) is not None


def read_samples(path: Path) -> Iterator[tuple[JsonObject, JsonObject] | UnreadableRecord]:
    """Yield the header of the log with each sample, whatever the status of the run."""
    if path.exists() and not path.is_file():
        raise RunError(f"Cannot read {path}: it is not a regular file.")
    try:
        with path.open("rb") as file:
            zipped = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
            file.seek(0)
            sample = None
            for sample in _read_eval_log(path, file) if zipped else _read_json_log(path, file):
                yield sample
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror or error}.") from error
    if sample is None:
        yield UnreadableRecord(path, None, "this log has no samples")


def resolve_attachments(value: Any, attachments: JsonObject) -> Any:
    """Replace all references to attachments of the log in a value by their contents."""
    if isinstance(value, str) and value.startswith(_ATTACHMENT_PREFIX):
        return attachments.get(value.removeprefix(_ATTACHMENT_PREFIX), value)
    if isinstance(value, list):
        return [resolve_attachments(item, attachments) for item in value]
    if isinstance(value, dict):
        return {key: resolve_attachments(item, attachments) for key, item in value.items()}
    return value


def _read_json_log(
    path: Path, file: BinaryIO
) -> Iterator[tuple[JsonObject, JsonObject] | UnreadableRecord]:
    """Read a `.json` log of Inspect AI."""
    content = file.read().removeprefix(BOM_UTF8)
    if (reason := describe_placeholder(content)) is not None:
        yield UnreadableRecord(path, None, reason)
        return
    try:
        log = _check_header(from_json(content))
    except ValueError as error:
        yield UnreadableRecord.from_error(path, None, error)
        return
    logged = log.pop("samples", None) or []
    for number, sample in enumerate(logged if isinstance(logged, list) else [], 1):
        if isinstance(sample, dict):
            yield log, sample
        else:
            yield UnreadableRecord(path, None, f"sample {number} is not a JSON object")


def _read_eval_log(
    path: Path, file: BinaryIO
) -> Iterator[tuple[JsonObject, JsonObject] | UnreadableRecord]:
    """Read a `.eval` log of Inspect AI."""
    try:
        archive = ZipFile(file)
    except (*_ZIP_ERRORS, ValueError) as error:
        # The central directory is at the end: it is missing if the writer was killed.
        yield UnreadableRecord(path, None, f"the log is damaged or was never closed: {error}")
        return
    with archive:
        # Of two members with the same name, the later one is valid.
        members = {info.filename: info for info in archive.infolist()}
        first = next((members[name] for name in _HEADER_MEMBERS if name in members), None)
        try:
            header = _check_header(
                _read_member(archive, file, first) if first is not None else None
            )
        except ValueError as error:
            name = None if first is None else first.filename
            yield UnreadableRecord.from_error(path, None, error, record=name)
            return
        for name, info in members.items():
            if _SAMPLE_MEMBER.fullmatch(name):
                try:
                    sample = require_object(_read_member(archive, file, info), "the sample")
                except ValueError as error:
                    yield UnreadableRecord.from_error(path, None, error, record=name)
                else:
                    yield header, sample
            elif _SPLIT_SAMPLE_MEMBER.fullmatch(name):
                yield UnreadableRecord(path, None, f"{name}: split samples are not supported")


def _check_header(value: object) -> JsonObject:
    if not isinstance(value, dict) or not isinstance(value.get("eval"), dict):
        raise FormatError("this is not an Inspect AI log: it has no header with `eval`")
    return value


def _read_member(archive: ZipFile, file: BinaryIO, info: ZipInfo) -> object:
    try:
        if info.compress_type == _ZSTD_METHOD and sys.version_info < (3, 14):
            return from_json(_decompress_zstd(file, info))
        with archive.open(info) as member:
            return from_json(_read_limited(member, info, file))
    except _ZIP_ERRORS as error:
        raise FormatError(f"damaged: {error}") from None


def _decompress_zstd(file: BinaryIO, info: ZipInfo) -> bytearray:
    """Read a zstandard member, possibly of several frames; zipfile cannot before Python 3.14."""
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise MissingExtra.of("curate", "Reading an Inspect AI log (.eval)") from None
    if info.header_offset + info.compress_size > file.seek(0, 2):
        raise BadZipFile("it extends beyond the end of the file")
    file.seek(info.header_offset + _LOCAL_HEADER_BYTES - 4)
    name, extra = struct.unpack("<HH", file.read(4))
    file.seek(name + extra, 1)
    packed = file.read(info.compress_size)
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
        content = _read_limited(reader, info, file)
    except zstandard.ZstdError as error:
        raise BadZipFile(str(error)) from None
    if zlib.crc32(content) != info.CRC:
        raise BadZipFile("the checksum does not match")
    return content


def _read_limited(member: IO[bytes], info: ZipInfo, file: BinaryIO) -> bytearray:
    """Decompress in small pieces, so that no step can take much memory before the limit is met."""
    packed = min(info.compress_size, os.fstat(file.fileno()).st_size)
    limit = min(max(_MAX_MEMBER_BYTES, packed * _MAX_COMPRESSION_RATIO), MAX_LINE_BYTES)
    content = bytearray()
    while piece := member.read(_READ_BYTES):
        content += piece
        if len(content) > limit:
            raise FormatError(f"it expands to more than {limit >> 20:,} MiB")
    if sum(map(content.count, (b"{", b"[", b","))) > _MAX_VALUES:
        # Those in strings are no values.
        values = (found for found in _STRING_OR_VALUE.finditer(content) if found[1])
        if next(islice(values, _MAX_VALUES, None), None):
            raise FormatError(f"it has more than {_MAX_VALUES:,} values")
    return content
