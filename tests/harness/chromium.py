"""A headless Chromium of the platform, for tests that look at pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.harness.absent import absent, could_be_installed, set_up

if TYPE_CHECKING:
    from playwright.sync_api import Browser

QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; skip the test loudly where there is none."""
    if shutil.which("chromium") is None:
        set_up("chromium")
    if (program := shutil.which("chromium")) is None:
        absent("CHROMIUM", "tests/setup chromium", is_required_in_ci=could_be_installed())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(QUIET))
        try:
            yield browser
        finally:
            browser.close()
