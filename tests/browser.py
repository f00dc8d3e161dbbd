"""A real Chromium, headless, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM,
            headless=True,
            chromium_sandbox=os.geteuid() != 0,
            # A request that leaves loopback fails, and is recorded.
            args=["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        yield started
        started.close()


@contextmanager
def open_page(browser: Any, **options: Any) -> Iterator[Any]:
    """A page with its own storage. At its end: no script failed, and no request left loopback."""
    context = browser.new_context(**options)
    context.set_default_timeout(20_000)
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("websocket", lambda socket: requests.append(socket.url))

    def on_dialog(dialog: Any) -> None:
        # Nothing on our pages opens one: only a script of somebody else would.
        errors.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", on_dialog)
    try:
        yield page
        assert not errors
        local = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:image/")
        assert requests and all(url.startswith(local) for url in requests), requests
    finally:
        context.close()
