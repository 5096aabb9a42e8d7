"""Charts of a table's past as inline SVG, each with a text alternative and the table behind it.

A drawing is stretched to the width of the page, and its labels are text of the page beside it: so
letters have one size on a telephone and on a wide screen. Colours are classes, which the style of
the page gives a value for light, dark and paper. No chart tells anything by colour alone: marks
differ in form or place, and the table has every number. Pure.

Rejected: a plotting library, which would be the largest dependency of the warehouse agent, and
draws pictures that follow neither the reader's scheme of colours nor the width of a window.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from driftline.errors import named
from markupsafe import Markup, escape

from warehouse_agent.history.totals import Totals, reads_text
from warehouse_agent.monitoring.report import axes
from warehouse_agent.monitoring.report.axes import Axis, count_text, span_text
from warehouse_agent.monitoring.report.refresh_series import PARTS, RefreshPoint, TableSeries
from warehouse_agent.report import bytes_text, counted, is_held_back_for_long

WIDTH, HEIGHT = 2000, 480  # of a drawing, in its own units: no more is seen of a place
# That have a colour, by class p0, p1…; `evaluate` and `join` are of views.
PHASES: Final = ("reduce", "exchange", "apply", "prove", "publish", "evaluate", "join")
REST: Final = "other"
PHASE_WORDS: Final = {
    "reduce": "adding up the copy", "exchange": "comparing", "apply": "writing", "prove": "proving",
    "publish": "publishing", "evaluate": "computing the view", "join": "joining",
}  # fmt: skip
SHADES: Final = 6  # of a strip of heat, beside none
_BAR: Final = 0.72  # of a slot
Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Attributes:
        name: of its place in the page.
        description: what it shows, in one or two sentences.
        drawing: the SVG.
        legend: classes of marks, and what they mean.
        across, along: ticks of the x and y axes; positions are shares from the left, and the top.
        headings, rows: of the table behind it.
        height: of the drawing, in lines of text.
    """

    name: str
    title: str
    description: str
    drawing: Markup
    legend: tuple[tuple[str, str], ...]
    across: tuple[tuple[float, str], ...]
    along: tuple[tuple[float, str], ...]
    headings: tuple[str, ...]
    rows: Rows
    height: float = 11.0


def charts_of(series: TableSeries, now: float, interval_s: float | None) -> list[Chart]:
    """Return the charts of a table; one of which nothing is known is left out.

    Args:
        now: in seconds since 1970.
        interval_s: the longest time between two refreshes that is asked for; None: none is.
    """
    made = (
        freshness(series, now, interval_s),
        changes(series),
        traffic(series),
        durations(series),
        load(series),
        predictions(series),
        columns(series),
        key_ranges(series),
        by_day(series),
    )
    return [chart for chart in made if chart is not None]


def freshness(series: TableSeries, now: float, interval_s: float | None) -> Chart | None:
    """Return how old the published data was: it ages until a refresh replaces it."""
    points = [point for point in series.points if point.age_s is not None]
    if not points:
        return None
    x = axes.moments(points[0].at, max(now, points[-1].at))
    corners: list[tuple[float, float]] = []
    for point in points:
        if corners and point.age_before_s is not None:
            corners.append((point.at, point.age_before_s))
        corners.append((point.at, point.age_s or 0.0))
    corners.append((now, corners[-1][1] + max(now - corners[-1][0], 0.0)))
    ages = [age for _, age in corners]
    goal = [] if interval_s is None or interval_s > 3 * max(ages) else [interval_s]
    y = axes.spans(max([*ages, *goal]))
    line = _path((x.at(at), y.at(age)) for at, age in corners)
    base = f"V{HEIGHT}H{_x(x.at(corners[0][0]))}Z"
    marks = [f'<path class="area s1" d="{line}{base}"/>', f'<path class="saw s1" d="{line}"/>']
    legend = [("line s1", "age of the published data")]
    if goal:
        level = _y(y.at(goal[0]))
        marks.append(f'<path class="dash s0" d="M0 {level}H{WIDTH}"/>')
        legend.append(("dash s0", f"longest interval asked for: {span_text(goal[0])}"))
    failed = [one for one in series.failed_at if one >= points[0].at]
    if failed:
        rises = "".join(f"M{_x(x.at(one))} 0v52" for one in failed)
        marks.append(f'<path class="tick bad" d="{rises}"/>')
        legend.append(("tick bad", f"{_refreshes(len(failed))} failed"))
    before = [age for age in (p.age_before_s for p in points) if age is not None]
    said = f"Now {span_text(ages[-1])} old, at most {span_text(max(ages))} since "
    said += f"{points[0].when}."
    if before:
        said += f" Usually {span_text(statistics.median(before))} old when it is refreshed."
    rows = (
        (
            p.when, _span(p.age_before_s), _span(p.age_s),
            "" if p.version is None else str(p.version),
        )
        for p in reversed(points)
    )  # fmt: skip
    return _chart(
        "freshness", "How fresh it was", said, marks, legend, x, y,
        ("refreshed at", "age before", "age after", "version"), rows,
    )  # fmt: skip


def changes(series: TableSeries) -> Chart | None:
    """Return the changed rows of each refresh, beside the band that the forecast gave."""
    points = [point for point in series.points if point.changed is not None]
    if not points:
        return None
    x = axes.moments(points[0].at, points[-1].at)
    foretold = [(point, point.expected) for point in points if point.expected is not None]
    highs = [float(expected[2]) for _, expected in foretold]
    y = axes.logarithmic([*highs, *(float(p.changed or 0) for p in points)], count_text, zero=True)
    marks, legend = [], []
    if foretold:
        upper = [(x.at(p.at), y.at(high)) for p, (_, _, high) in foretold]
        lower = [(x.at(p.at), y.at(low)) for p, (low, _, _) in foretold]
        marks.append(f'<path class="area s2" d="{_path([*upper, *lower[::-1]])}Z"/>')
        legend.append(("area s2", "forecast, meant for 8 of 10 refreshes"))
    within = [point for point in points if point.is_as_forecast]
    outside = [point for point in points if not point.is_as_forecast]
    for chosen, mark, what in (
        (within, "dot s1", "as forecast" if foretold else "changed rows"),
        (outside, "cross s3", "other than forecast"),
    ):
        if chosen:
            marks.append(_marks(mark, ((x.at(p.at), y.at(float(p.changed or 0))) for p in chosen)))
            legend.append((mark, what))
    usual = statistics.median(p.changed or 0 for p in points)
    said = f"Usually {counted(round(usual), 'row')} changed, at most"
    said += f" {max(p.changed or 0 for p in points):,}."
    whole = series.whole
    if whole.foretold:
        said += f" {whole.in_band / whole.foretold:.0%} of {_refreshes(whole.foretold)} were within"
        said += " their forecast."
    rows = (
        (
            p.when, f"{p.changed:,}", *_rows(p),
            "" if p.expected is None else f"{p.expected[1]:,} ({p.expected[0]:,} to"
            f" {p.expected[2]:,})",
        )
        for p in reversed(points)
    )  # fmt: skip
    headings = ("refreshed at", "changed rows", "inserted", "updated", "deleted", "forecast")
    return _chart("changes", "How many rows changed", said, marks, legend, x, y, headings, rows)


def traffic(series: TableSeries) -> Chart | None:
    """Return the bytes of each refresh, between those of its changed rows alone and of a copy."""
    points = [point for point in series.points if point.moved is not None]
    if not any(point.moved for point in points):  # a view moves none
        return None
    x = axes.moments(points[0].at, points[-1].at)
    copies = [(p.at, float(p.copied)) for p in points if p.copied]
    floors = [(p.at, p.floor) for p in points if p.floor]
    moved = [(p.at, float(p.moved or 0)) for p in points]
    shown = [value for _, value in (*copies, *moved)] + [value for _, value in floors]
    y = axes.logarithmic(shown, bytes_text)
    marks, legend = list[str](), list[tuple[str, str]]()
    for one, mark, what in (
        (copies, "dash s4", "a copy of all rows"),
        (floors, "line s2", "the changed rows alone"),
        (moved, "line s1", "what the refresh moved"),
    ):
        if one:
            marks.append(f'<path class="{mark}" d="{_path((x.at(a), y.at(b)) for a, b in one)}"/>')
            legend.insert(0, (mark, what))
    said = f"A refresh moved {bytes_text(statistics.median(v for _, v in moved))} in the median."
    whole = series.whole
    if whole.copied:
        said += f" All of them moved {bytes_text(whole.moved_beside)}; as many copies would have"
        said += f" moved {bytes_text(whole.copied)}."
    rows = (
        (
            p.when, bytes_text(p.moved or 0),
            "" if p.floor is None else bytes_text(p.floor),
            "" if p.copied is None else bytes_text(p.copied), p.method or "", p.why or "",
        )
        for p in reversed(points)
    )  # fmt: skip
    headings = ("refreshed at", "moved", "changed rows alone", "a copy", "method", "why")
    return _chart("bytes", "What it moved", said, marks, legend, x, y, headings, rows)


def durations(series: TableSeries) -> Chart | None:
    """Return the seconds of each refresh, by phase, as bars."""
    points = [point for point in series.points if point.phases]
    if not points:
        return None
    named = [name for name in PHASES if any(name in point.phases for point in points)]
    spent = [_by_phase(point) for point in points]
    names = [*named, REST] if any(one.get(REST) for one in spent) else named
    x = axes.slots([_day_text(point.when) for point in points])
    y = axes.spans(max(sum(one.values()) for one in spent))
    words = {name: PHASE_WORDS.get(name, name) for name in names}
    layers = [
        (f"fill {_phase_class(n)}", words[n], [one.get(n, 0.0) for one in spent]) for n in names
    ]
    marks, legend = _stacked(x, y, layers)
    took = [point.seconds for point in points if point.seconds is not None]
    said = f"A refresh took {span_text(statistics.median(took))} in the median," if took else ""
    most = max(names, key=lambda name: sum(one.get(name, 0.0) for one in spent))
    said += f" most of it {words[most]}."
    rows = (
        (
            p.when, _span(p.seconds), *(_span(one.get(name)) for name in names),
            _span(p.held_back_s),
        )
        for p, one in zip(reversed(points), reversed(spent), strict=True)
    )  # fmt: skip
    headings = ("refreshed at", "in all", *words.values(), "held back")
    return _chart("seconds", "How long it took", said, marks, legend, x, y, headings, rows)


def load(series: TableSeries) -> Chart | None:
    """Return the rows that the source read for each refresh, beside those of the table."""
    points = [point for point in series.points if point.rows_read is not None]
    if not any(point.rows_read for point in points):  # nothing is read for a view
        return None
    x = axes.moments(points[0].at, points[-1].at)
    read = [(p.at, float(p.rows_read or 0)) for p in points]
    tables = [(p.at, float(p.total)) for p in points if p.total]
    y = axes.counts(max(value for _, value in (*read, *tables)), count_text)
    marks, legend = list[str](), list[tuple[str, str]]()
    for one, mark, what in ((tables, "dash s4", "rows of the table"), (read, "line s1", "read")):
        if one:
            marks.append(f'<path class="{mark}" d="{_path((x.at(a), y.at(b)) for a, b in one)}"/>')
            legend.insert(0, (mark, what))
    said = f"A refresh read {count_text(statistics.median(v for _, v in read))} rows of the source"
    whole_reads = [p.rows_read / p.total for p in points if p.rows_read is not None and p.total]
    if whole_reads:
        said += f", {reads_text(statistics.median(whole_reads))},"
    said += " in the median."
    if (whole := series.whole).read_in:
        said += f" {_refreshes(whole.read_in)} read {count_text(whole.rows_read)} in"
        said += f" {counted(whole.scans, 'scan')}"
        held = is_held_back_for_long(whole.held_back_s)
        said += (
            f", held back for {span_text(whole.held_back_s)} to spare its database."
            if held
            else "."
        )
    rows = (
        (
            p.when, f"{p.rows_read:,}",
            f"{p.rows_read / p.total:.1f}" if p.rows_read is not None and p.total else "",
            "" if p.scans is None else f"{p.scans:,}",
            _span(p.phases.get("exchange")), _span(p.held_back_s),
        )
        for p in reversed(points)
    )  # fmt: skip
    headings = (
        "refreshed at", "rows read", "reads of the whole table", "scans", "reading and sending",
        "held back",
    )  # fmt: skip
    return _chart("load", "What it cost the source", said, marks, legend, x, y, headings, rows)


def predictions(series: TableSeries) -> Chart | None:
    """Return bytes and seconds of each refresh as multiples of what was predicted."""
    found: list[tuple[RefreshPoint, float | None, float | None]] = []
    for point in series.points:
        if (predicted := point.predicted) is not None:
            sent = _ratio(point.moved, predicted.bytes)
            took = _ratio(point.seconds, predicted.seconds)
            if sent is not None or took is not None:
                found.append((point, sent, took))
    if not found:
        return None
    x = axes.moments(found[0][0].at, found[-1][0].at)
    sents = [(p.at, sent) for p, sent, _ in found if sent is not None]
    tooks = [(p.at, took) for p, _, took in found if took is not None]
    y = axes.ratios([value for _, value in (*sents, *tooks)])
    marks = [f'<path class="dash s0" d="M0 {_y(y.at(1.0))}H{WIDTH}"/>']
    legend = [("dash s0", "as predicted")]
    for one, mark, what in ((sents, "dot s1", "bytes"), (tooks, "cross s5", "seconds")):
        if one:
            marks.append(_marks(mark, ((x.at(a), y.at(b)) for a, b in one)))
            legend.append((mark, what))
    said = " and ".join(
        f"{statistics.median(value for _, value in one):.2g} times the predicted {what}"
        for what, one in (("bytes", sents), ("seconds", tooks))
        if one
    )
    said = f"In the median a refresh took {said}."
    if (middle := series.whole.error.quantile(0.5)) is not None:
        high = series.whole.error.quantile(0.9) or 0.0
        said += f" Of rows, {middle:.2g} times those expected had changed; in nine of ten refreshes"
        said += f" at most {high:.2g} times."
    rows = (
        (
            p.when, p.predicted.what,
            "" if p.predicted.bytes is None else bytes_text(p.predicted.bytes),
            "" if p.moved is None else bytes_text(p.moved),
            _span(p.predicted.seconds), _span(p.seconds),
        )
        for p, _, _ in reversed(found)
        if p.predicted is not None
    )  # fmt: skip
    headings = (
        "refreshed at", "predicted way", "bytes predicted", "moved", "time predicted", "taken",
    )  # fmt: skip
    return _chart(
        "predicted", "Predicted and actual", said, marks, legend, x, y,
        headings, rows,
    )  # fmt: skip


def columns(series: TableSeries) -> Chart | None:
    """Return in which columns updated rows changed, as bars."""
    compared, counts = series.whole.compared, series.columns
    if not compared or not counts:
        return None
    slots = len(counts)
    bars = "".join(
        f"M0 {_n((n + (1 - _BAR) / 2) / slots * HEIGHT)}"
        f"h{_n(min(rows / compared, 1.0) * WIDTH)}v{_n(_BAR / slots * HEIGHT)}H0Z"
        for n, (_, rows) in enumerate(counts)
    )
    x = axes.Axis(lambda share: share, tuple((n / 4, f"{n / 4:.0%}") for n in range(5)))
    y = axes.Axis(
        lambda share: share,
        tuple((1 - (n + 0.5) / slots, name) for n, (name, _) in enumerate(counts)),
    )
    said = f"Of {count_text(compared)} updated rows that were compared column by column."
    rows = ((name, f"{rows:,}", f"{rows / compared:.1%}") for name, rows in counts)
    return _chart(
        "columns", "Which columns change", said, [f'<path class="fill s1" d="{bars}"/>'], (), x, y,
        ("column", "updated rows", "share"), rows, height=max(1.7 * slots, 4), has_grid=False,
    )  # fmt: skip


def key_ranges(series: TableSeries) -> Chart | None:
    """Return where in the order of the key rows changed, as strips of heat."""
    strips = series.heat
    if not strips:
        return None
    shades: dict[int, list[str]] = {}
    for n, (_, counts) in enumerate(strips):
        most = max(counts)
        for part, rows in enumerate(counts):
            if rows:
                shade = max(math.ceil(math.sqrt(rows / most) * SHADES), 1)
                left, top = part * WIDTH / PARTS, n * HEIGHT / len(strips)
                cell = f"M{_n(left + 2)} {_n(top + 2)}h{_n(WIDTH / PARTS - 4)}"
                cell += f"v{_n(HEIGHT / len(strips) - 4)}H{_n(left + 2)}Z"
                shades.setdefault(shade, []).append(cell)
    rooms = "".join(
        f"M0 {_n((n + 0.5) * HEIGHT / len(strips))}H{WIDTH}" for n in range(len(strips))
    )
    marks = [f'<path class="grid" d="{rooms}"/>']
    marks += [
        f'<path class="heat h{shade}" d="{"".join(cells)}"/>'
        for shade, cells in sorted(shades.items())
    ]
    ends = ((0.12, "least keys"), (0.88, "greatest keys"))
    x = axes.Axis(lambda share: share, ends)
    y = axes.Axis(
        lambda share: share,
        tuple((1 - (n + 0.5) / len(strips), name) for n, (name, _) in enumerate(strips)),
    )
    whole = strips[0][1]
    hottest = max(range(PARTS), key=lambda part: whole[part])
    said = f"The key’s order in {PARTS} parts. Most changes, {whole[hottest] / sum(whole):.0%},"
    said += f" are in part {hottest + 1}. A darker part has more, within its line."
    rows_shown = [
        (name, *(f"{number:,}" if number else "" for number in counts)) for name, counts in strips
    ]
    return _chart(
        "keys", "Which keys change", said, marks,
        (("heat h1", "few"), ("heat h3", ""), (f"heat h{SHADES}", "most")), x, y,
        ("part", *(str(part + 1) for part in range(PARTS))), rows_shown,
        height=max(1.7 * len(strips), 4), has_grid=False,
    )  # fmt: skip


def by_day(series: TableSeries) -> Chart | None:
    """Return refreshes by day: that went well, were put off by the source, and failed."""
    if not series.days and not series.months:
        return None
    x = axes.slots([_day_text(name) for name, _ in series.days])
    y = axes.counts(max((one.attempts for _, one in series.days), default=1), count_text)
    every = [one for _, one in series.days]
    marks, legend = _stacked(
        x, y,
        (
            ("fill s1", "went well", [one.refreshes for one in every]),
            ("fill s2", "put off by the source", [one.put_off for one in every]),
            ("fill bad", "failed", [sum(one.failed.values()) for one in every]),
        ),
    )  # fmt: skip
    whole = series.whole
    failed = sum(whole.failed.values())
    said = f"{_refreshes(whole.refreshes)} went well"
    said += f"{f', {failed:,} failed' if failed else ', none failed'}"
    said += f", since {series.since}." if series.since else "."
    rows = [_day_row(name, one) for name, one in reversed((*series.months, *series.days))]
    headings = (
        "day or month", "went well", "failed", "changed rows", "moved", "copies", "longest tenth",
    )  # fmt: skip
    return _chart("days", "Refreshes by day", said, marks, legend, x, y, headings, rows)


def _day_row(name: str, one: Totals) -> tuple[str, ...]:
    slow = one.took_s.quantile(0.9)
    return (
        name,
        f"{one.refreshes:,}",
        ", ".join(f"{times:,} {named(code)}" for code, times in sorted(one.failed.items())),
        f"{one.inserted + one.updated + one.deleted:,}",
        bytes_text(one.sent + one.received),
        bytes_text(one.copied) if one.copied else "",
        "" if slow is None else f"from {span_text(slow)}",
    )


def _day_text(name: str) -> str:
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    month, day = name[5:7], name[8:10]
    if month.isdecimal() and day.isdecimal() and 1 <= int(month) <= len(months):
        return f"{int(day)} {months[int(month) - 1]}"
    return name


def _by_phase(point: RefreshPoint) -> dict[str, float]:
    """Return the seconds of the phases that have a colour, and of all others together."""
    spent = {name: point.phases[name] for name in PHASES if name in point.phases}
    rest = sum(s for name, s in point.phases.items() if name not in spent)
    return {**spent, REST: rest} if rest else spent


def _phase_class(name: str) -> str:
    return f"p{PHASES.index(name)}" if name in PHASES else "p9"


def _rows(point: RefreshPoint) -> tuple[str, str, str]:
    rows = point.rows
    if rows is None:
        return "", "", ""
    return f"{rows.inserted:,}", f"{rows.updated:,}", f"{rows.deleted:,}"


def _refreshes(number: int) -> str:
    return f"{number:,} refresh{'' if number == 1 else 'es'}"


def _span(seconds: float | None) -> str:
    return "" if seconds is None else span_text(seconds)


def _ratio(actual: float | None, predicted: float | None) -> float | None:
    return None if not actual or not predicted else actual / predicted


def _chart(
    name: str, title: str, said: str, marks: Sequence[str], legend: Iterable[tuple[str, str]],
    x: Axis, y: Axis, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]],
    *, height: float = 11.0, has_grid: bool = True,
) -> Chart:  # fmt: skip
    """Return a chart of marks over its grid.

    More than seven parameters: each is an attribute of `Chart`, or what one is made of.
    """
    grid = "".join(f"M0 {_y(at)}H{WIDTH}" for at, _ in y.ticks)
    lines = f'<path class="grid" d="{grid}"/>' if has_grid else ""
    drawing = (
        f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
        f' aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(title)}</title>'
        f'<desc id="{name}-d">{escape(said)}</desc>'
        f"{lines}{''.join(marks)}</svg>"
    )
    shown = Markup(drawing)  # noqa: S704 - numbers, our names, and texts that are escaped
    return Chart(
        name, title, said, shown, tuple(legend), x.ticks,
        tuple((1 - at, label) for at, label in y.ticks), headings, tuple(rows), height,
    )  # fmt: skip


def _path(corners: Iterable[tuple[float, float]]) -> str:
    """Return a path through positions."""
    return "M" + "L".join(f"{_x(across)} {_y(up)}" for across, up in corners)


def _marks(mark: str, places: Iterable[tuple[float, float]]) -> str:
    """Return marks at positions: lines without length, which their ends make round or square."""
    drawn = "".join(f"M{_x(across)} {_y(up)}h0" for across, up in places)
    return f'<path class="{mark}" d="{drawn}"/>'


def _stacked(
    x: Axis, y: Axis, layers: Iterable[tuple[str, str, Sequence[float]]]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return bars on bars, one for each slot of `x`, and their legend.

    Args:
        layers: class, meaning and the amount in each slot; the lowest first.
    """
    marks, legend, below = [], [], dict[int, float]()
    for mark, what, amounts in layers:
        bars = []
        for n, amount in enumerate(amounts):
            low = below.get(n, 0.0)
            below[n] = low + amount
            if amount > 0:
                left, right = x.at(n + (1 - _BAR) / 2), x.at(n + (1 + _BAR) / 2)
                bars.append(_bar(left, right, y, low, below[n]))
        if bars:
            marks.append(f'<path class="{mark}" d="{"".join(bars)}"/>')
            legend.append((mark, what))
    return marks, legend


def _bar(left: float, right: float, y: Axis, low: float, high: float) -> str:
    bottom = _y(y.at(low))
    return f"M{_x(left)} {bottom}V{_y(y.at(high))}H{_x(right)}V{bottom}Z"


def _x(position: float) -> str:
    return _n(position * WIDTH)


def _y(position: float) -> str:
    return _n((1 - position) * HEIGHT)


def _n(value: float) -> str:
    return f"{value:.0f}"
