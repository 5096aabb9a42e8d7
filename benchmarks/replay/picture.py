"""The picture of a replay: bytes shipped so far, against a full copy each time and the floor.

    python -m benchmarks.replay.picture [--results benchmarks/replay.jsonl] [--picture FILE]

Drawn from recorded lines. Readable by day and by night: matplotlib draws the day's colours, and a
style sheet in the file replaces each of them where the reader prefers dark. Words stay words, with
a title and a description for those who listen. The file is the same for the same results: no date,
no random ids. Needs matplotlib (`dev`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from itertools import accumulate
from pathlib import Path
from xml.sax.saxutils import escape

import click
import matplotlib as mpl
from matplotlib.dates import YearLocator
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator

from benchmarks.replay.results import CONNECTION_BYTES, Record, read, readable

SIZE_INCHES = (9.2, 4.4)
PAGE, WORD, SOFT, OURS, COPY = "#f4f6f8", "#1d2730", "#5b6b7a", "#2266aa", "#a8480f"
NIGHT = {PAGE: "#12181e", WORD: "#eef2f5", SOFT: "#9fb0c0", OURS: "#6fb1f0", COPY: "#f5a56b"}


@dataclass(frozen=True)
class Curve:
    """Bytes so far, after each refresh; `words` stand at its end."""

    words: str
    colour: str
    dashes: str
    so_far: list[float]


def curves(records: Sequence[Record], connection_bytes: int) -> list[Curve]:
    def so_far(sizes: Sequence[int]) -> list[float]:
        return [float(size) for size in accumulate(sizes)]

    copies = so_far([r.load_bytes + connection_bytes for r in records])
    ours = so_far([r.bytes + connection_bytes for r in records])
    messages, floor = so_far([r.bytes for r in records]), so_far([r.floor_bytes for r in records])
    return [
        Curve(f"a compressed full copy each time: {readable(copies[-1])}", COPY, "-", copies),
        Curve(f"driftline: {readable(ours[-1])}", OURS, "-", ours),
        Curve(f"its messages alone: {readable(messages[-1])}", OURS, "--", messages),
        Curve(f"the floor: {readable(floor[-1])}", SOFT, "-", floor),
    ]


def described(records: Sequence[Record], drawn: Sequence[Curve]) -> tuple[str, str]:
    """Title and description."""
    title = (
        f"{len(records):,} refreshes of a table of {records[-1].rows:,} rows, "
        f"{records[0].at[:4]} to {records[-1].at[:4]}: bytes shipped so far"
    )
    ends = "; ".join(curve.words for curve in drawn)
    return title, (
        f"Four curves over time, on a logarithmic scale of bytes. After the last refresh: {ends}. "
        f"A full copy each time ships {drawn[0].so_far[-1] / drawn[1].so_far[-1]:.0f} times as "
        "much as Driftline. Driftline's curve rises evenly, but for a few steps where thousands of "
        "rows changed at once, and follows the floor there."
    )


def draw(records: Sequence[Record], connection_bytes: int = CONNECTION_BYTES) -> str:
    """The picture as SVG."""
    mpl.rcParams["svg.hashsalt"] = "driftline"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    mpl.rcParams["font.sans-serif"] = ["Helvetica", "Arial", "DejaVu Sans"]
    drawn = curves(records, connection_bytes)
    title, text = described(records, drawn)
    figure = Figure(figsize=SIZE_INCHES, layout="constrained", facecolor=PAGE)
    axes = figure.subplots()
    axes.set_facecolor("none")
    times = [datetime.fromisoformat(r.at).timestamp() / 86_400 for r in records]  # days, UTC
    for curve in drawn:
        width = 1.2 if curve.dashes == "--" or curve.colour == SOFT else 2.2
        axes.plot(times, curve.so_far, color=curve.colour, linestyle=curve.dashes, linewidth=width)
        axes.annotate(
            curve.words,
            (times[-1], curve.so_far[-1]),
            xytext=(6, 0),
            textcoords="offset points",
            color=curve.colour,
            verticalalignment="center",
            annotation_clip=False,  # they stand right of the axes
        )
    axes.set_yscale("log")
    axes.set_xlim(times[0], times[-1])
    axes.xaxis_date()
    axes.xaxis.set_major_locator(YearLocator())
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    axes.minorticks_off()
    axes.set_title(title, color=WORD, loc="left", fontsize="medium", pad=10)
    axes.tick_params(colors=SOFT, length=0)
    axes.grid(visible=True, axis="y", color=SOFT, alpha=0.25)
    axes.spines[:].set_visible(False)
    out = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format="svg", facecolor=PAGE, metadata=nothing)
    return _finished(out.getvalue(), title, text)


def _finished(svg: str, title: str, text: str) -> str:
    """With words for those who listen, and colours for the night."""
    night = "".join(
        f'      [style*="{kind}: {day}"] {{ {kind}: {dark} !important; }}\n'
        for day, dark in NIGHT.items()
        for kind in ("fill", "stroke")
    )
    head = (
        f'\n <title id="title">{escape(title)}</title>\n <desc id="text">{escape(text)}</desc>\n'
        f" <style>\n    @media (prefers-color-scheme: dark) {{\n{night}    }}\n </style>\n"
    )
    root, body = svg[svg.index("<svg") :].split(">", 1)
    root = re.sub(r' (width|height)="[^"]*"', "", root)  # as wide as there is room
    root = root.replace("<svg", '<svg role="img" aria-labelledby="title text"')
    lines = f"{root}>{head}{body}".splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


@click.command()
@click.option("--results", type=Path, default=Path("benchmarks/replay.jsonl"), show_default=True)
@click.option("--picture", type=Path, default=Path("docs/replay.svg"), show_default=True)
@click.option("--connection-bytes", default=CONNECTION_BYTES, show_default=True)
def main(results: Path, picture: Path, connection_bytes: int) -> None:
    """Draw the picture again."""
    picture.write_text(draw(read(results), connection_bytes), encoding="utf-8")


if __name__ == "__main__":
    main()
