"""What comes out of an author's code: whose doing it is, and what the wire says of it.

Code that a model wrote calls `sys.exit()` as readily as anything else. That is the fault of one
call, and nobody's wish to end the process.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback

from ludus.errors import ExecutionFailed, WireError

_HEARD = (signal.SIGINT, signal.SIGTERM)


def is_fault(error: BaseException) -> bool:
    """Whether the code raised it, and not somebody who cancels the call or ends the process."""
    if isinstance(error, Exception):
        return True
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    # Signals are heard in the main thread, whatever code it is in just then.
    if threading.current_thread() is not threading.main_thread():
        return True
    return not isinstance(error, KeyboardInterrupt) and not _is_from_handler(error)


def blamed(error: BaseException) -> WireError:
    """What the code raised, as the wire's error; what was not its doing goes on its way."""
    if isinstance(error, WireError) or not is_fault(error):
        raise error
    return ExecutionFailed(words_of(error))


def words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_from_handler(error: BaseException) -> bool:
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    handlers = [signal.getsignal(number) for number in _HEARD]
    return any(getattr(each, "__code__", None) is innermost.f_code for each in handlers)
