"""`diff` over real files, against an oracle that parses them by itself."""

import csv
import json
import random

import duckdb
import pyarrow.parquet as pq
import pytest
from driftline.errors import (
    ConfigurationError,
    DuplicateKey,
    SnapshotLost,
    UsageError,
    ValueDoesNotFit,
)

from tests.harness import forks
from tests.harness.forks import WAREHOUSE
from warehouse_agent.differential.command import DiffOptions, diff
from warehouse_agent.differential.reading import named
from warehouse_agent.differential.window import WindowBuffers

FORMAT = """
null = "NULL"

[columns]
id = "int8"
name = "text"
balance = "numeric(12,2)"
"""
HEADER = ["id", "name", "balance"]


def account(number, balance):
    name = ["Ada", 'O"Neil, "Bob"', "Çelik\nZoë", "", None][number % 5]
    return str(number), name, balance


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(HEADER) + "\n")
        for row in rows:
            quoted = ['"' + v.replace('"', '""') + '"' if v is not None else "NULL" for v in row]
            file.write(f"{row[0]},{quoted[1]},{row[2]}\n")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "accounts.toml").write_text(FORMAT, encoding="utf-8")
    dice = random.Random(11)
    old = [account(i, "10.50") for i in range(2000)]
    new = [account(i, "12.00" if i % 100 == 9 else "10.50") for i in range(2000) if i % 90]
    new += [account(5000 + i, "0.00") for i in range(30)]
    dice.shuffle(new)
    write(tmp_path / "old.csv", old)
    write(tmp_path / "new.csv", new)
    return tmp_path


def oracle(old, new):
    """The changes between two CSV files; no value here is an unquoted text that a quoted one is."""

    def rows(path):
        with path.open(encoding="utf-8", newline="") as file:
            return {int(r["id"]): tuple(r.values()) for r in csv.DictReader(file)}

    before, after = rows(old), rows(new)
    return {
        *(("delete", str(k)) for k in before.keys() - after.keys()),
        *(("insert", *after[k]) for k in after.keys() - before.keys()),
        *(("update", *after[k]) for k in after.keys() & before.keys() if before[k] != after[k]),
    }


def written(path):
    with path.open(encoding="utf-8", newline="") as file:
        found = [tuple(row.values()) for row in csv.DictReader(file)]
    # NULL is nothing here and NULL in the dump; the empty name is "" in both.
    rows = [r[:2] if r[0] == "delete" else (*r[:2], _name(r), r[3]) for r in found]
    assert len(rows) == len(set(rows))
    return set(rows)


def _name(row):
    return "NULL" if int(row[1]) % 5 == 4 else row[2]


def run(folder, *names, capsys=None, **options):
    given = {
        "format": folder / "accounts.toml",
        "key": ["id"],
        "output": folder / "changes.csv",
    } | options
    files, buffers = [folder / name for name in names], given.pop("buffers", None)
    asked = DiffOptions(**given)
    diff(folder / "warehouse.toml", files, asked, as_json=True, buffers=buffers)
    return json.loads(capsys.readouterr().out) if capsys else {}


def test_the_window_writes_the_changes_between_two_files(folder, capsys):
    found = run(folder, "old.csv", "new.csv", capsys=capsys)
    assert written(folder / "changes.csv") == oracle(folder / "old.csv", folder / "new.csv")
    assert found.pop("output") == str(folder / "changes.csv")
    assert 0.5 < found.pop("distance") < 0.8  # one of both is shuffled: two thirds
    assert found == {
        "algorithm": "window",
        "note": "",
        "old": 2000,
        "new": 2007,
        "same": 1957,
        "updates": 20,
        "deletes": 23,
        "inserts": 30,
        "mended": 0,
    }


@pytest.mark.spark
@pytest.mark.slow
def test_rows_with_nan_are_found_by_readers_that_skip_by_bounds(spark, tmp_path, capsys):
    (tmp_path / "accounts.toml").write_text('[columns]\nid = "int8"\nx = "float8"\ny = "float4"\n')
    (tmp_path / "old.csv").write_text("id,x,y\n")
    (tmp_path / "new.csv").write_text("id,x,y\n1,1.5,1.5\n2,NaN,NaN\n3,-0.0,0\n")
    output = tmp_path / "changes.parquet"
    run(tmp_path, "old.csv", "new.csv", output=output, capsys=capsys)
    footer = pq.read_metadata(output).row_group(0)
    bounded = {footer.column(i).path_in_schema for i in range(4) if footer.column(i).statistics}
    assert bounded == {"_op", "id"}
    for condition in ("x > 100", "isnan(x)", "y > 100", "isnan(y)"):
        assert [r.id for r in spark.read.parquet(str(output)).filter(condition).collect()] == [2]
        query = f"SELECT id FROM '{output}' WHERE {condition}"
        assert duckdb.execute(query).fetchall() == [(2,)]


@pytest.mark.starts
def test_the_command_line(folder):
    command = [*WAREHOUSE, "diff", "old.csv", "new.csv"]
    done = forks.run([*command, "--format", "accounts.toml", "--key", "id"], cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "20 updates, 23 deletes and 30 inserts, from 2,000 to 2,007 records: "
        "new.csv.changes.parquet\nwindow, distance 0."
    )
    failed = forks.run(command, cwd=folder)
    assert failed.returncode == 2
    assert "Missing option '--format'" in failed.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_what_the_window_gives_up_is_joined(folder, capsys):
    small = WindowBuffers(keys_bytes=8 * 100)
    found = run(folder, "old.csv", "new.csv", capsys=capsys, buffers=small)
    assert found["algorithm"] == "hash"
    assert found["note"].startswith("The window gave up: the new file is not sorted by its key")
    assert written(folder / "changes.csv") == oracle(folder / "old.csv", folder / "new.csv")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_state_stands_in_for_the_old_file(folder, capsys):
    state = folder / "state"
    found = run(folder, "old.csv", "old.csv", capsys=capsys, state=state)
    assert found["algorithm"] == "sort-merge"
    assert "has no state.json. Both files were read." in found["note"]
    found = run(folder, "new.csv", capsys=capsys, state=state)
    assert found["note"] == ""
    assert written(folder / "changes.csv") == oracle(folder / "old.csv", folder / "new.csv")

    part = next((state / "records").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    (folder / "changes.csv").unlink()
    found = run(folder, "old.csv", "new.csv", capsys=capsys, state=state)
    assert found["note"].endswith("is missing or damaged. Both files were read.")
    assert written(folder / "changes.csv") == oracle(folder / "old.csv", folder / "new.csv")

    (folder / "state" / "state.json").unlink()
    with pytest.raises(ConfigurationError, match=r"The state cannot be used: .* Name the old file"):
        run(folder, "new.csv", state=state)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["old.csv", "new.csv"], {"key": []}, "No key is named"),
        (["new.csv"], {}, "One file is named, and no state"),
        (["old.csv"] * 3, {}, "3 files are named"),
        (["old.csv", "new.csv"], {"state": "s", "algorithm": "window"}, "keeps no state"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(folder, names, options, message):
    with pytest.raises(UsageError, match=message):
        run(folder, *names, **options)


def test_an_output_never_replaces_a_file_that_is_compared(folder):
    before = (folder / "new.csv").read_bytes()
    with pytest.raises(
        UsageError, match=r"output 'new.csv' is one of the two files that are compared"
    ):
        run(folder, "old.csv", "new.csv", output=folder / "new.csv")
    assert (folder / "new.csv").read_bytes() == before


def test_a_file_that_changes_before_it_is_read_again_is_refused(folder):
    snapshot = named(folder / "new.csv", folder / "accounts.toml", ("id",))
    assert sum(map(len, snapshot.read())) == 2007
    with (folder / "new.csv").open("a", encoding="utf-8") as file:
        file.write('7000,"x",12.00\n')
    with pytest.raises(SnapshotLost, match=r"new.csv: The file was replaced or changed"):
        next(iter(snapshot.read()))


def test_a_file_that_is_not_as_described_is_refused_with_its_line(folder):
    with (folder / "new.csv").open("a", encoding="utf-8") as file:
        file.write('7000,"x",twelve\n')
    with pytest.raises(ValueDoesNotFit, match=r"'new.csv'"):
        run(folder, "old.csv", "new.csv")
    assert not (folder / "changes.csv").exists()


def test_a_duplicate_key_is_refused_by_the_numbers_of_its_records(folder):
    write(folder / "new.csv", [account(i % 1999, "1.00") for i in range(2000)])
    with pytest.raises(DuplicateKey, match=r"new.csv: Records 1 and 2,000 have the same key"):
        run(folder, "old.csv", "new.csv")
