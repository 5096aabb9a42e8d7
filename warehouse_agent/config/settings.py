"""What warehouse.toml says: sources, the copies to keep of their relations, and views over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import total_ordering
from pathlib import Path
from typing import TYPE_CHECKING

from driftline.settings.hours import WeekSpan

from warehouse_agent.change_models.memory import Distance
from warehouse_agent.columns.arrow import Carrier
from warehouse_agent.planning.choice import Method
from warehouse_agent.planning.network import Objective
from warehouse_agent.planning.tiling import PassSettings
from warehouse_agent.timetable.timing import Timing

if TYPE_CHECKING:
    from warehouse_agent.decomposition.view_needs import OccurrenceNeed

DRIVER_SHARE = 0.25  # of the memory
AHEAD = 4  # fragments
SOURCES_AT_ONCE = 4
EXECUTORS_WAIT_S = 120.0


class Maintain(Enum):
    """Ways in which a view follows its inputs."""

    AUTO = "auto"  # the cheaper way
    INCREMENTAL = "incremental"  # by affected keys, wherever that is possible
    RECOMPUTE = "recompute"


class EventKind(Enum):
    """Events of which a column claims the time."""

    CREATION = "creation"  # of the row: only rows that survive show it
    UPDATE = "update"  # the row's last change: those before it do not show


@dataclass(frozen=True, slots=True)
class EventTime:
    """A column of a relation that claims when something happened to each row."""

    column: str
    kind: EventKind


class OnFailure(Enum):
    """Choices for the inputs of a view that fails: they move without it, or wait for it."""

    STALE = "stale"
    HOLD = "hold"


AUDIT_S = 7 * 86_400


class Require(Enum):
    """The weakest consistency that may be published."""

    EXACT = "exact"
    FUZZY = "fuzzy"


@total_ordering
class Proof(Enum):
    """Parts of a version that are proven equal to the source, from the weakest to the strongest.

    The table of a version records the value (docs/guarantees.md#what-a-proof-covers).
    """

    CLAIMED = "claimed"  # nothing beside a proven version: changes are those that a marker claims
    PART = "part"  # the rows that were compared; the others are as an earlier refresh left them
    KEYS = "keys"  # all keys, and the rows that were read
    TOTAL = "total"  # all rows

    @property
    def accepts_marker(self) -> bool:
        """True if changed rows may be those that a marker of the relation shows."""
        return self in {Proof.KEYS, Proof.CLAIMED}

    def __lt__(self, other: Proof) -> bool:
        ascending = tuple(Proof)
        return ascending.index(self) < ascending.index(other)


@dataclass(frozen=True, slots=True)
class Source:
    """A source agent at `HOST:PORT`. The three files of mutual TLS are all set, or all None if it
    is `insecure`, on loopback.

    `server_name`: the name in its certificate, if it is not the host of the address.
    `objective`: what refreshes over this line minimize.
    `time_zone`: of its wall clock, by which its jobs run.
    `refresh_hours`: when scheduled refreshes may begin, by that clock; none: always.
    """

    name: str
    address: str
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    server_name: str | None = None
    objective: Objective = Objective.SECONDS
    time_zone: str = "UTC"
    refresh_hours: tuple[WeekSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Fragment:
    """A copy to keep of one relation of one source.

    `read_at_most`: rows of the source that a refresh reads by key: those most likely to have
    changed, and some in turn; None: all rows are compared.
    `proof`: the weakest proof that a refresh may publish; PART needs `Require.FUZZY`.
    `audit_s`: where a marker is accepted, seconds between two comparisons of all rows.
    `staging_at_most`: bytes of frames that may be staged; None: half of the free space of the disk.
    `priority`: fragments with a higher one are refreshed first.
    `timing`: when it is to be refreshed; None: as the views over it say, else once a day.
    `distance`: by which an updated row weighs; None: each counts as one.
    `event_time`: a column from which `fit` learns when rows change; None: from refreshes alone.
    `is_kept`: nobody configured it; a view needs it, and its table lies below `_driftline/kept`.
    `wishes`: of a kept fragment, what each occurrence in each view needs of it.
    """

    name: str
    source: Source
    relation: str
    carriers: dict[str, Carrier] = field(default_factory=dict)
    method: Method | None = None
    require: Require = Require.EXACT
    proof: Proof = Proof.TOTAL
    audit_s: int = AUDIT_S
    read_at_most: int | None = None
    incremental: PassSettings | None = None
    staging_at_most: int | None = None
    priority: int = 0
    timing: Timing | None = None
    distance: Distance | None = None
    event_time: EventTime | None = None
    is_kept: bool = False
    wishes: tuple[OccurrenceNeed, ...] = ()

    @property
    def beside(self) -> tuple[str, ...]:
        """Return the relations of its source with which views join it, in order of name."""
        return tuple(sorted({name for wish in self.wishes for name in wish.relations}))

    @property
    def time_zone(self) -> str:
        """Return the time zone of its hours of change."""
        return self.source.time_zone if self.timing is None else self.timing.zone


@dataclass(frozen=True, slots=True)
class View:
    """A select-project-join over fragments and views, published as a table of its own.

    `query`: Spark SQL, as the data engineer wrote it; `views.query` reads it.
    `inputs`: the fragment or view of each table in it, in order; `views.inputs.load` finds them.
    `max_lag_s`: seconds for which changes of its fragments may wait for it; 0: for no refresh.
    `timing`: when what it reads is to be refreshed; without a zone: by those of its sources.
    `chunk_rows`: changed rows that are gathered before they are propagated; None: the optimum.
    `site_joins`: rows of kept relations are chosen by those that they reference, where possible.
    """

    name: str
    query: str
    inputs: tuple[str, ...] = ()
    maintain: Maintain = Maintain.AUTO
    on_failure: OnFailure = OnFailure.STALE
    max_lag_s: int = 0
    chunk_rows: int | None = None
    timing: Timing | None = None
    site_joins: bool = False


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The way to an object store; unset: as AWS's own programs reach S3. It holds no secret.

    `endpoint`: the address of a server that is not AWS.
    `region`: None: that of the environment; at an endpoint any.
    `profile`, `credentials_file`: where the keys stand; None: they are looked for in the
    environment and on the machine.
    `price_per_1000_reads`, `price_per_1000_writes`: of requests; lists count as writes.
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    credentials_file: Path | None = None
    price_per_1000_reads: float | None = None
    price_per_1000_writes: float | None = None

    @property
    def is_plain(self) -> bool:
        """Return True if the line to the store is not encrypted."""
        return self.endpoint is not None and self.endpoint.startswith("http://")


class MessageFormat(Enum):
    """Forms in which webhooks take messages."""

    JSON = "json"  # our own
    SLACK = "slack"  # incoming webhooks, also of Mattermost
    TEAMS = "teams"  # workflows of Microsoft Teams, which take an adaptive card


@dataclass(frozen=True, slots=True)
class SecretAddress:
    """The address of a receiver: `written` in the configuration, or in a `file` of its own.

    `where`: the setting.
    """

    written: str | None = field(repr=False)
    file: Path | None
    where: str


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Receivers of messages about what happens to tables; none by default.

    `command`: a program and its arguments.
    `webhook_secret_file`: holds the key by which messages are signed.
    `timeout_s`: for an answer.
    `has_values`: messages carry the texts of errors, which may name keys and values of rows.
    """

    command: tuple[str, ...] | None = field(default=None, repr=False)
    webhook: SecretAddress | None = None
    webhook_secret_file: Path | None = None
    format: MessageFormat = MessageFormat.JSON
    heartbeat: SecretAddress | None = None
    timeout_s: float = 1.5
    has_values: bool = False


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Places of the numbers for Prometheus; None: not there.

    `textfile`: for node_exporter. `listen`: host and port of `driftline run`.
    """

    textfile: Path | None = None
    listen: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class WarehouseConfig:
    """The contents of warehouse.toml.

    Attributes:
        path: an absolute path of a folder, or `s3://BUCKET[/FOLDER]`.
        storage: how the bucket is reached.
        fragments, views: by name; `views.inputs.load` adds the kept fragments that views need.
        small_bytes: the most bytes that a step reads or writes without Spark; None: its place is
            chosen by seconds and memory.
        driver_share: of the memory, above which it runs on Spark then.
        ahead: the most fragments of a source that share a snapshot; None: all of a command.
        sources_at_once: sources that are refreshed side by side.
        executors_wait_s: the longest time without an executor of Spark, in seconds.
        metrics: None: there are none.
        notify: who is told.
        freshness_table: commands write the table of freshness.
    """

    file: Path
    path: str
    small_bytes: int | None
    spark: Mapping[str, str] = field(repr=False)  # they may hold keys
    sources: Mapping[str, Source]
    fragments: Mapping[str, Fragment]
    views: Mapping[str, View] = field(default_factory=dict)
    ahead: int | None = AHEAD
    sources_at_once: int = SOURCES_AT_ONCE
    executors_wait_s: float = EXECUTORS_WAIT_S
    driver_share: float = DRIVER_SHARE
    storage: StorageSettings = StorageSettings()
    metrics: MetricsSettings | None = None
    notify: NotifySettings = NotifySettings()
    freshness_table: bool = True
