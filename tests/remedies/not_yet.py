"""Remedies that a test could carry out, and none does yet. This list only becomes shorter."""

from __future__ import annotations

NOT_YET: tuple[str, ...] = (
    "Ask again after the next flip.",
    "Ask its DBA to check the database and silence_timeout_s.",
    (
        "Ask the DBA for `derive` of the relation, or run the view's command again with a "
        "query that the source still evaluates."
    ),
    (
        "Change the expression so that it fails on no row (such as try_divide, try_cast, "
        "nullif), or mend the rows at the source."
    ),
    (
        "Check `[spark]`, and that Spark may read and write the warehouse; run with --debug "
        "for the whole of Spark's message."
    ),
    "Check that the server runs and can be reached, then run the command again.",
    "Check the URL, the server and the account's rights.",
    "Check the user and password.",
    "Check this machine's clock. `driftline-source enroll` makes new certificates.",
    "Check what runs at the source's address; nothing was published.",
    "Convert it: CAST(… AS …), such as STRING.",
    "Correct the query: Spark refuses it whatever the rows are.",
    "Correct the settings in [spark]; --debug shows all that it wrote.",
    (
        "Find out what the agent's session waits for. Raise database.silence_timeout_s if a "
        "statement needs longer before its first row."
    ),
    (
        "Find out what the agent's session waits for. Raise database.silence_timeout_s where "
        "a statement needs longer before its first row."
    ),
    (
        "Find out what the agent's session waits for. Raise silence_timeout_s if a statement "
        "needs longer before its first row."
    ),
    "Free space and run the refresh again; the last published version is untouched.",
    "GRANT SELECT on it to the login.",
    "If it took long: … If not: …",
    "Name a column of type timestamp or timestamptz, without another carrier.",
    "Name a file in a folder that exists.",
    "Name one of its columns of type timestamp or timestamptz.",
    "Name one of them.",
    "Publish a query that reads text as bytes: convert_to(col, '…').",
    (
        "Raise statement_timeout_s of the file or the account's own limit, whichever is "
        "shorter, or publish less of it."
    ),
    "Read the newest state: `at(spark, path)` without a version.",
    "Read the newest version once and the feed from there on.",
    "Refresh what it reads: driftline refresh …",
    "Remove `read_at_most` from the fragment, so that all rows are compared.",
    "Rename it.",
    ("Restore a dump of it, made with `pg_dump --encoding`, into a database of another encoding."),
    (
        "Restore the last version that Driftline wrote; or move the folder away: the next "
        "refresh of a view makes a new one from the newest version of every table."
    ),
    "Run `driftline refresh …`, and read the newest version of the warehouse.",
    (
        "Run `driftline verify … --repair`: it computes the view anew. Report it if nobody "
        "changed files."
    ),
    "Run the command again later.",
    "Run the command again: it goes on from what was committed.",
    "Run the refresh again: it goes on from what was committed.",
    "Set a smaller `small_bytes` in [warehouse], so that Spark does more.",
    "Set as_text for the column, or publish a query that casts it to OCTETS.",
    "The table began anew: read its newest version once and the feed from there on.",
    'Validate the constraint, or remove `fingerprint = "database"`.',
    "Write source.relation, or the name of a fragment.",
    "Write the query without it: Spark does not support it.",
    "Write the query, view or `where` so that it raises none, with CAST.",
    "`driftline verify …` computes it again; ask for receipts of what it reads: ….",
    "`names` has the tables of this version; `read` reads others one by one.",
    "…Correct the text at the source, or publish a query that reads it as bytes.",
)
