"""Price what joins at a site would leave there, against keeping the relation. Pure.

A relation that is kept, and its part that joins at the site, take one comparison each; beside it
come the rows: all of them at a load, those that changed at a refresh. What a site's database reads
more, the rows that it joins with, is weighed with the rows that it then need not hand over.
Rejected: to take joins where they cost less, without a setting; a view over parts of two snapshots
waits (docs/views.md, joins at a site), which its engineer decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from warehouse_agent.planning.choice import CHANGE_SHARE

COMPARISON_BYTES = 850  # of a refresh beside its rows: opening, derivation, cells, ends
FOUND_ROW_BYTES = 10  # of cells, for each changed row
BYTES_SHARE = 0.5  # of a kept relation's bytes: joins that need more are not advised
READS_SHARE = 1.2  # of the rows that are spared: the most that a database reads for joins


@dataclass(frozen=True, slots=True)
class SiteJoinPrice:
    """Prices of joins at a site, of one kept relation, and of keeping it.

    Attributes:
        fragment: its name.
        rows: that are kept; at most `joined` of them are in the view.
        row_bytes: of a row on the line.
        changed: rows of a refresh that are compared; None: there was none since the load.
        read: rows of `others`, which the database reads for the joins.
    """

    fragment: str
    rows: int
    joined: int
    row_bytes: float
    changed: int | None
    read: int
    others: tuple[str, ...]

    @property
    def load_bytes(self) -> tuple[int, int]:
        """Return the bytes of a load, of the relation and of its part."""
        return self._bytes(self.rows, self.row_bytes)

    @property
    def refresh_bytes(self) -> tuple[int, int]:
        """Return the bytes of a refresh, of the relation and of its part."""
        changed = self.rows * CHANGE_SHARE if self.changed is None else self.changed
        return self._bytes(changed, self.row_bytes + FOUND_ROW_BYTES)

    @property
    def is_advised(self) -> bool:
        """Return True if a load and refreshes take clearly fewer bytes, and the database does not
        read many more rows than it is spared."""
        kept, joined = map(sum, zip(self.load_bytes, self.refresh_bytes, strict=True))
        is_read = self.read <= READS_SHARE * (self.rows - self.joined)
        return joined <= BYTES_SHARE * kept and is_read

    def describe(self) -> str:
        """Return the comparison in words."""
        kept, joined = zip(self.load_bytes, self.refresh_bytes, strict=True)
        return (
            f"site_joins = true would keep at most {self.joined:,} of the {self.rows:,} rows of"
            f" {self.fragment}: {joined[0]:,} bytes of {kept[0]:,} at a load, {joined[1]:,} of"
            f" {kept[1]:,} at a refresh; the site's database would also read about {self.read:,}"
            f" {'row' if self.read == 1 else 'rows'} of {', '.join(self.others)}"
        )

    def _bytes(self, rows: float, each: float) -> tuple[int, int]:
        share = min(self.joined / max(self.rows, 1), 1.0)
        kept, joined = rows * each, rows * share * each
        return round(COMPARISON_BYTES + kept), round(COMPARISON_BYTES + joined)
