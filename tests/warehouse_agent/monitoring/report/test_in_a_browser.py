"""The command writes a report, and Chromium shows every page of it: quietly, alone and in place.

Of an empty, a healthy and a failing warehouse, on a telephone and on a screen, light and dark: no
message on the console, no request but for the page, no dialog, nothing wider than the window.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driftline.errors import SourceUnreachable, ValueDoesNotFit

from tests.harness.chromium import chromium
from tests.harness.past_refreshes import Past, configured
from warehouse_agent.cli.main import cli
from warehouse_agent.storage.store import PRIVATE, Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.starts, pytest.mark.slow]

NOW = datetime.now(UTC).replace(microsecond=0)
LONG = "ledger_of_all_invoices_and_credit_notes_since_1997_with_a_name_that_nobody_shortens"
HOSTILE = ("id", "<img src=x onerror=alert(1)>", '"><script>alert(2)</script>', "\u202e", "a" * 200)
LOST = SourceUnreachable(
    "Nothing answers at erp.example:7443: Connection refused <script>alert(3)</script>.",
    where='source "><img src=x onerror=alert(4)>',
    remedy="Start `driftline-source serve`, or see whether a firewall drops the packets.",
)
SECRET = "Alice Miller"
VALUE = ValueDoesNotFit(
    f"The value {SECRET!r} does not fit.", where="prices.amount", remedy="Set `carriers`."
)
ago = NOW - timedelta(minutes=9)
PASTS: dict[str, Sequence[Past]] = {
    "empty": (),
    "healthy": (Past("orders", 90, ago), Past("nation", 90, ago, rows=25, changes=0, seed=2)),
    "failing": (
        Past("orders", 400, ago, altered=380, columns=HOSTILE),
        Past("customers", 90, NOW - timedelta(hours=9), lost=4, error=LOST),
        Past("prices", 40, ago, lost=1, error=VALUE),
        Past("loaded", 1, ago),
        Past(LONG, 30, NOW - timedelta(hours=50)),
    ),
}


def warehouse(at: Path, kind: str) -> Path:
    """A configuration, and what refreshes left: reports, commits, and a command that was killed."""
    at.mkdir()
    store = Store(str(at / "warehouse"))
    for past in PASTS[kind]:
        past.write(store)
    if kind == "failing":
        began = NOW.timestamp() - 5000
        said = {
            "began": began,
            "who": "process 7 of <b>root</b>",
            "names": ["orders"],
            "said": began,
        }
        store.write(json.dumps(said).encode() + b"\n", PRIVATE, "commands", "abc.jsonl")
    return configured(at, [past.name for past in PASTS[kind]] + ["new_table"])


def report(config: Path, output: Path, *words: str) -> None:
    line = ["--config", str(config), "report", "--output", str(output), *words]
    cli.main(line, standalone_mode=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module", params=PASTS)
def pages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every page of a report, the index first."""
    at = tmp_path_factory.mktemp("report") / request.param
    report(warehouse(at, request.param), at / "pages")
    found = sorted((at / "pages").rglob("*.html"))
    assert len(found) == 2 + len(PASTS[request.param])
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_is_quiet_and_in_place(
    browser: Browser, pages: list[Path], width: int, scheme: str
) -> None:
    heard: list[str] = []
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("dialog", lambda dialog: heard.append(dialog.message))
    page.on("request", lambda request: heard.append(request.url))
    grounds = set()
    for file in pages:
        page.goto(file.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert heard == [file.as_uri()], "of this page alone"
        heard.clear()
        shown = page.evaluate("document.documentElement.scrollWidth")
        assert shown <= width, f"{file.name} is {shown} wide"
        assert page.locator("script, img, iframe, link, object").count() == 0
        drawings = page.locator("figure svg[role=img]")
        assert drawings.count() == page.locator("figure").count()
        for n in range(drawings.count()):
            assert drawings.nth(n).locator("> title").text_content()
            assert drawings.nth(n).locator("> desc").text_content()
        assert page.locator("figure details table").count() == drawings.count()
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 1
    ground = int(grounds.pop().split("(")[1].split(",")[0])
    assert ground < 60 if scheme == "dark" else ground > 240
    context.close()


def test_a_name_that_is_markup_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    report(warehouse(tmp_path / "failing", "failing"), tmp_path / "pages")
    page = browser.new_page()
    page.goto((tmp_path / "pages/tables/orders.html").as_uri())
    assert page.get_by_text("<img src=x onerror=alert(1)>").count() >= 1
    page.goto((tmp_path / "pages/index.html").as_uri())
    assert page.get_by_text("Connection refused <script>alert(3)</script>.").count() == 1
    assert page.get_by_text("process 7 of <b>root</b>").count() == 1
    page.close()


def test_what_failed_is_seen_without_scrolling_and_leads_to_its_page(
    browser: Browser, tmp_path: Path
) -> None:
    report(warehouse(tmp_path / "failing", "failing"), tmp_path / "pages")
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((tmp_path / "pages/index.html").as_uri())
    lost = page.locator("article", has_text="UNREACHABLE")
    box = lost.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 800
    assert "Start driftline-source serve" in lost.inner_text()
    lost.get_by_role("link", name="customers").click()
    assert page.title() == "customers: failed 4×, late: UNREACHABLE (source does not answer)"
    page.get_by_role("link", name="all tables").click()
    assert page.locator("h1").inner_text() == "warehouse.toml"
    page.close()


def test_paper_is_light(browser: Browser, tmp_path: Path) -> None:
    report(warehouse(tmp_path / "healthy", "healthy"), tmp_path / "pages")
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto((tmp_path / "pages/tables/orders.html").as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 10_000
    context.close()
