"""How soon Python hands its lock from thread to thread, while one of them decodes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

QUICK = 0.0005
"""Seconds after which a thread that waits gets Python's lock. The usual 5 ms are more than several
steps of a fast decoder, and one thread decodes while another converses."""
_lock = threading.Lock()
_decoding = 0
_usual = 0.0


@contextmanager
def taking_turns() -> Iterator[None]:
    """Short while anybody is in here, and as it was before when nobody is."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _decoding, _usual
    with _lock:
        _decoding += 1
        if _decoding == 1:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(min(_usual, QUICK))


def _leave() -> None:
    global _decoding
    with _lock:
        _decoding -= 1
        if not _decoding:
            sys.setswitchinterval(_usual)
