"""The program of a worker process: one browser, driven by requests of its parent.

A request is `[method, arguments]` and a reply `{"value": …}` or `{"fault": …}`, as JSON, over the
socket whose file descriptor is the first argument. The process ends with the connection, also while
the browser hangs, and takes the browser with it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from typing import Any

from ludus.envs.browsergym.process_tree import adopt_orphans, end_children, remove_folder


def main() -> None:
    # Ctrl-C is handled by the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    connection = Connection(int(sys.argv[1]))
    requests: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    receiver = threading.Thread(target=_receive, args=(connection, requests), daemon=True)
    receiver.start()
    from ludus.envs.browsergym.browser import BrowserSession

    session: BrowserSession | None = None
    while True:
        method, arguments = requests.get()
        try:
            if method == "launch":
                session = BrowserSession(**arguments)
                value = None
            else:
                value = getattr(session, method)(**arguments)
            reply = {"value": value}
        except Exception as error:
            reply = {"fault": f"{type(error).__name__}: {error}"}
        try:
            connection.send_bytes(json.dumps(reply).encode())
        except OSError:
            receiver.join()  # The parent is gone: the receiver cleans up and ends the process.


def _receive(connection: Connection, requests: queue.SimpleQueue[list[Any]]) -> None:
    """Queue the requests; end the process when the parent closes the connection or exits."""
    try:
        while True:
            requests.put(json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        end_children()
        remove_folder(tempfile.gettempdir())
        os._exit(0)


if __name__ == "__main__":
    main()
