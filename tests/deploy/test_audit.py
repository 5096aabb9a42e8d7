"""Known vulnerabilities of the pinned packages: that the command of the page finds them, and fails
where the service does not answer; and, as soak, what PyPI says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests import ROOT
from tests.deploy.test_release import pins
from tests.harness.absent import absent

COMMAND = "pip-audit --strict --disable-pip -r deploy/source-requirements.txt"  # of the page


def audit(*more: str) -> subprocess.CompletedProcess[str]:
    """Run the command of the page."""
    program, *words = shlex.split(COMMAND)
    found = shutil.which(program, path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")
    if found is None:
        absent("PIP-AUDIT", "the extra `release` is not installed", is_required_in_ci=True)
    return subprocess.run(
        [found, *words, *more], cwd=ROOT, capture_output=True, text=True, check=False
    )


@contextmanager
def service(vulnerable: str, *, status: int = 200) -> Iterator[str]:
    """A stand-in for OSV, which knows one vulnerable package; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = []
            if (name := question["package"]["name"]) == vulnerable:
                affected = {
                    "package": {"name": name, "ecosystem": "PyPI"},
                    "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
                    "versions": [question["version"]],
                }
                day = "2026-01-01T00:00:00Z"
                found = [
                    {"id": "OSV-1", "summary": "a hole", "details": "", "modified": day,
                     "published": day, "affected": [affected]}
                ]  # fmt: skip
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_page_has_the_command() -> None:
    page = ROOT / "docs" / "operating" / "deployment.md"
    assert f"`{COMMAND}`" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("vulnerable", "status", "code"), [("no-package", 200, 0), ("click", 200, 1), ("", 404, 1)]
)
def test_an_audit_passes_only_if_all_are_known_to_be_safe(
    vulnerable: str, status: int, code: int
) -> None:
    with service(vulnerable, status=status) as url:
        done = audit("-s", "osv", "--osv-url", url)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("OSV-1" in done.stdout) == (vulnerable == "click")


@pytest.mark.soak
def test_no_pinned_package_has_a_known_vulnerability() -> None:
    """By what PyPI says today, so it may fail without a change of ours: `deploy/pin --upgrade`."""
    done = audit("--format", "json")
    if done.returncode != 0 and not done.stdout.startswith("{"):
        reason = f"pip-audit: {(done.stderr.strip() or 'said nothing').splitlines()[-1]}"
        absent("VULNERABILITIES OF PINNED PACKAGES", reason, is_required_in_ci=False)
    answers = json.loads(done.stdout)["dependencies"]
    assert {one["name"] for one in answers} == set(pins())
    assert {one["name"]: one["vulns"] for one in answers if one["vulns"]} == {}
