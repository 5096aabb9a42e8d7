"""Pictures of the peers' results: bytes against change rate with the floor, time against RTT.

    python -m benchmarks.peers.plots [--results benchmarks/peers.jsonl] [--output FOLDER]

Drawn from the recorded lines, so that drawing again runs nothing. A family is one curve, by its
best settings at each point; Driftline's methods are a curve each. No change is drawn at the left
edge, where a logarithm has no place for it. Runs that failed or were wrong are not drawn.

Those that a page shows are copied beside it; no others are kept in the tree. The files are the same
bytes for the same results: no date, no random ids. Needs matplotlib (`dev`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from benchmarks.peers.results import OURS, Result, link_name, percent, read

FLOOR = "floor"
NONE_PERCENT = 0.003  # where "no change" is drawn, a step left of 0.01 %
SIZE_INCHES = (7.2, 5.0)
RTTS_MIN = 3  # points of a curve
TICK_RATIO_MIN = 2.5  # of neighbours, or their names would overlap
STYLES = {  # colours that those who see no red or green can tell apart (Okabe and Ito)
    FLOOR: ("#000000", ":", ""),
    "driftline": ("#0072B2", "-", "o"),
    "driftline:range": ("#56B4E9", "--", "v"),
    "driftline:sketch": ("#56B4E9", "--", "^"),
    "driftline:group": ("#56B4E9", "--", "s"),
    "driftline:full": ("#56B4E9", "--", "x"),
    "full-copy": ("#999999", "-", "D"),
    "reladiff": ("#D55E00", "-", "s"),
    "reladiff+ssh": ("#D55E00", "--", "s"),
    "pg_comparator": ("#009E73", "-", "^"),
    "pg_comparator+ssh": ("#009E73", "--", "^"),
    "pt-table-sync": ("#CC79A7", "-", "v"),
    "pt-table-sync+ssh": ("#CC79A7", "--", "v"),
}
NOTES = {"pg_comparator": "keys only, writes at the source", "pg_comparator+ssh": "likewise"}
Points = dict[float, float]


def curves(
    results: Iterable[Result], x: Callable[[Result], float], y: Callable[[Result], float]
) -> dict[str, Points]:
    """For each curve the least y at each x."""
    by_name: dict[str, Points] = {}
    for result in results:
        if result.is_right:
            name = result.tool if result.family == OURS else result.family
            points = by_name.setdefault(name, {})
            points[x(result)] = min(y(result), points.get(x(result), float("inf")))
    return by_name


def draw_curve(axes: Axes, name: str, points: Points) -> None:
    colour, line, marker = STYLES.get(name, ("#E69F00", "-", "o"))
    label = f"{name} ({NOTES[name]})" if name in NOTES else name
    xs = sorted(points)
    axes.plot(
        xs,
        [points[at] for at in xs],
        color=colour,
        linestyle=line,
        marker=marker,
        markersize=4,
        linewidth=2 if name == OURS else 1.2,
        label=label,
    )


def bytes_against_rate(results: Sequence[Result]) -> Figure:
    """One table, pattern and link; both axes logarithmic."""

    def where(result: Result) -> float:
        return result.rate * 100 or NONE_PERCENT

    figure, axes = _figure(results[0], link_name(results[0]))
    floor = {where(r): float(r.floor_bytes) for r in results if r.floor_bytes}
    if floor:
        draw_curve(axes, FLOOR, floor)
    for name, points in curves(results, where, lambda result: result.cost.link_bytes).items():
        draw_curve(axes, name, points)
    rates = sorted({result.rate for result in results})
    axes.set(xscale="log", yscale="log", xlabel="rows changed", ylabel="bytes on the link")
    names = [percent(rate) if rate else "none" for rate in rates]
    for at in range(len(rates) - 1):
        if 0 < rates[at + 1] < TICK_RATIO_MIN * rates[at]:
            names[at] = ""
    axes.set_xticks([rate * 100 or NONE_PERCENT for rate in rates], names)
    axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    _finish(figure, axes)
    return figure


def seconds_against_rtt(results: Sequence[Result]) -> Figure:
    """One table, pattern and change rate. Where RTTS_MIN links have one rate, these by their round
    trip times; else every link that was measured, side by side."""
    rates = Counter(rate for _, rate in {(r.rtt_ms, r.rate_mbit) for r in results})
    usual, count = rates.most_common(1)[0]
    if count >= RTTS_MIN:
        results = [result for result in results if result.rate_mbit == usual]
    links = {(r.rtt_ms, -(r.rate_mbit or math.inf)): link_name(r) for r in results}
    is_one_rate = len({rate for _, rate in links}) == 1
    places = {link: link[0] if is_one_rate else float(at) for at, link in enumerate(sorted(links))}

    def where(result: Result) -> float:
        return places[result.rtt_ms, -(result.rate_mbit or math.inf)]

    figure, axes = _figure(results[0], f"{percent(results[0].rate)} changed")
    for name, points in curves(results, where, lambda result: result.known_s).items():
        draw_curve(axes, name, points)
    axes.set(yscale="log", ylabel="seconds until the change is known", xlabel="the link")
    names = [links[link].replace(", ", "\n") for link in places]
    if is_one_rate:
        axes.set_xlabel(f"round trip time, {link_name(results[0]).partition(', ')[2]}")
        names = [name.partition("\n")[0] for name in names]
    axes.set_xticks(list(places.values()), names)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    _finish(figure, axes)
    return figure


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """All pictures that the results give; returns the files."""
    mpl.rcParams["svg.hashsalt"] = "driftline"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    folder.mkdir(parents=True, exist_ok=True)
    shown = [result for result in results if not result.is_warming]
    files = []
    for by_rate in _grouped(shown, lambda r: (r.table, r.pattern, r.scale, r.rtt_ms, r.rate_mbit)):
        first = by_rate[0]
        link = f"{first.rtt_ms:g}ms-{first.rate_mbit or 0:g}mbit"
        name = f"peers-bytes-{first.table}-{first.pattern}-{link}"
        if len({result.rate for result in by_rate}) > 1:
            files.append(_save(bytes_against_rate(by_rate), folder / f"{name}.svg"))
    for by_rtt in _grouped(shown, lambda r: (r.table, r.pattern, r.scale, r.rate)):
        first = by_rtt[0]
        name = f"peers-seconds-{first.table}-{first.pattern}-{first.rate * 100:g}"
        if len({(result.rtt_ms, result.rate_mbit) for result in by_rtt}) > 1:
            files.append(_save(seconds_against_rtt(by_rtt), folder / f"{name}.svg"))
    return files


def _grouped(
    results: Iterable[Result], key: Callable[[Result], tuple[object, ...]]
) -> list[list[Result]]:
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return list(groups.values())


def _figure(result: Result, where: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    axes.set_title(
        f"{result.table}, scale {result.scale:g}, {result.pattern}; {where}", fontsize="medium"
    )
    return figure, axes


def _finish(figure: Figure, axes: Axes) -> None:
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.minorticks_off()
    figure.legend(fontsize="small", frameon=False, loc="outside lower center", ncols=3)


def _save(figure: Figure, file: Path) -> Path:
    figure.savefig(file, metadata={"Date": None})
    return file


@click.command()
@click.option("--results", type=Path, default=Path("benchmarks/peers.jsonl"), show_default=True)
@click.option("--output", type=Path, default=Path("artifacts/peers"), show_default=True)
def main(results: Path, output: Path) -> None:
    """Draw the pictures again."""
    for file in draw(read(results), output):
        print(file)


if __name__ == "__main__":
    main()
