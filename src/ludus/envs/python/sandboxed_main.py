"""The program inside the sandbox: runs a model's code, and calls its function.

The interpreter gets it as text (`-c`), so that no file of Ludus has to be visible inside. It reads
a request from stdin and writes one line of JSON per step: started, code executed or not, and the
result of each call. It never learns what should be returned: the comparison is made outside. The
code runs in this very process and may forge lines, which helps it no more than to return those
values.
"""

from __future__ import annotations

import marshal
import os
import sys
from _json import encode_basestring_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The import takes longer than most programs.
    from typing import Any, BinaryIO

FILE_NAME = "code.py"


def main() -> None:
    source, function, calls = marshal.loads(sys.stdin.buffer.read())
    replies = os.fdopen(os.dup(1), "wb")
    # What the code prints goes to stderr's pipe, in the order in which it is printed.
    os.dup2(2, 1)
    # Its declared type, TextIO, does not have the method.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.stderr = sys.stdout
    sys.argv = [FILE_NAME]
    write_reply(replies, '"started"')
    namespace = create_namespace("__main__" if function is None else "solution")
    try:
        exec(compile(source, FILE_NAME, "exec", dont_inherit=True), namespace)
        if function is not None and not callable(namespace.get(function)):
            raise NameError(f"the code does not define the function {function!r}")
    except BaseException as error:
        if function is None and isinstance(error, SystemExit) and error.code in (None, 0):
            write_reply(replies, "{}")
        else:
            print_traceback(error, source)
            write_reply(replies, encode({"error": describe(error)}))
    else:
        write_reply(replies, "{}")
        for arguments in calls:
            write_reply(replies, call(namespace[function], arguments))
    sys.stdout.flush()


def create_namespace(name: str) -> dict[str, Any]:
    module = sys.modules[name] = type(sys)(name)
    return module.__dict__


def call(function: Any, arguments: Any) -> str:
    try:
        return encode({"value": function(*arguments)})
    except BaseException as error:
        return encode({"error": describe(error)})


def write_reply(replies: BinaryIO, line: str) -> None:
    replies.write(line.encode() + b"\n")
    replies.flush()


def encode(value: Any) -> str:
    """Encode a value as JSON. Importing the json module would take longer than most programs."""
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(
            text := float.__repr__(value), text
        )
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([encode(item) for item in value]) + "]"
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        pairs = [f"{encode(key)}:{encode(item)}" for key, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    raise TypeError(f"a value of type {type(value).__name__} was returned, see the signature")


def describe(error: BaseException) -> str:
    try:
        text = str(error)
        return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
    except BaseException:
        return "an exception that cannot be printed"


def print_traceback(error: BaseException, source: str) -> None:
    try:
        import linecache
        import traceback

        linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(True), FILE_NAME)
        # Without the frame of `main`.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, trace, limit=-20, file=sys.stdout)
    except BaseException:
        print(describe(error))


if __name__ == "__main__":
    main()
