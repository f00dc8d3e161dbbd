"""The signal handler of all commands."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from ludus.cli.display.signals import INTERRUPTED, TERMINATED, handle_signals


@pytest.fixture(autouse=True)
def default_sigint() -> Iterator[None]:
    """Pytest may run as a background job, which ignores SIGINT."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_accepted_signals_are_counted_and_do_not_raise() -> None:
    requests: list[tuple[str, int]] = []

    def accept(reason: str, count: int) -> bool:
        requests.append((reason, count))
        return True

    with handle_signals(accept):
        send(signal.SIGINT)
        send(signal.SIGTERM)
    assert requests == [(INTERRUPTED, 1), (TERMINATED, 2)]


def test_a_declined_sigint_raises_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), handle_signals():
        send(signal.SIGINT)


def test_a_declined_sigterm_exits_with_143() -> None:
    with pytest.raises(SystemExit, match="143"), handle_signals():
        send(signal.SIGTERM)


def test_an_error_that_a_signal_caused_is_replaced_by_its_exception() -> None:
    with pytest.raises(KeyboardInterrupt), handle_signals():
        try:
            send(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("an extension in C failed") from None


def test_a_swallowed_exception_is_raised_again_on_request() -> None:
    with pytest.raises(KeyboardInterrupt), handle_signals() as raise_pending:
        with contextlib.suppress(KeyboardInterrupt):
            send(signal.SIGINT)
        raise_pending()


def test_ignored_signals_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with handle_signals():
        send(signal.SIGINT)


def test_previous_handlers_are_restored() -> None:
    with handle_signals():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
