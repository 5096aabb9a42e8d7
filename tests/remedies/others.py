"""Remedies that no test of this room carries out: who does, or why nobody can. No test here."""

from __future__ import annotations

# By the conditions of docs/errors.md: `tests.conditions` makes each, ends it as the remedy says,
# and lets the next refresh converge.
CONDITIONS: dict[str, tuple[str, ...]] = {
    "the source's certificate is of another authority": (
        "Ask the DBA for the ca.pem that issued it; … holds another.",
    ),
    "the source's certificate has expired": (
        (
            "Have the DBA renew it: `driftline-source enroll`. If its dates are right, correct this"
            " machine's clock."
        ),
    ),
    "the source's certificate is for another name": (
        (
            "If that is the source, set … in [sources.…]; else correct `address`, or have the DBA"
            " enroll again with --source-name …."
        ),
    ),
    "our certificate is of another authority": (
        "Check that `certificate` was issued by the source's `client_ca`, and its dates.",
        "Check that … was issued by the source's `client_ca`.",
    ),
    "our certificate has expired": (
        (
            "Have it made anew: `driftline-source enroll`. If its dates are right, correct this"
            " machine's clock."
        ),
    ),
    "TLS is spoken to a port in plain text": (
        (
            "Check that the address is the source agent's, and that its [server] has `certificate`,"
            " `key` and `client_ca`."
        ),
    ),
    "plain text is spoken to a port with TLS, without a certificate": (
        "Remove `insecure` and set `ca`, `certificate` and `key`.",
    ),
    "a byte changed in the TLS handshake": (
        "Run the command again; if it repeats, look for what changes bytes on the way.",
    ),
    "the line is reset while rows come": ("Run the command again; what arrived is kept.",),
    "the database is down": ("Check that it runs and that database.url is right, then try again.",),
    "the database refuses the password": (
        "Check the user, the password and the database's name in database.url, and pg_hba.conf.",
    ),
    "a materialized view was never filled": (
        "As the owner of a materialized view that was never filled: REFRESH MATERIALIZED VIEW.",
    ),
    "a query computes other values each time it is read": (
        "Ask the DBA to publish it without such functions, or to check the indexes.",
    ),
    "an index of the table lacks rows": (
        (
            "Run the refresh again. If it repeats, ask the DBA whether the query or view computes"
            " other values each time it is read, as random() and clock_timestamp() do, or an index"
            " of its table lacks rows, which REINDEX mends."
        ),
    ),
    "a statement is cancelled by pg_cancel_backend": (
        "Somebody at the source cancelled it: ask the DBA.",
    ),
    "a session is ended by pg_terminate_backend": ("Try again later.",),
    "the database restarts": (
        "Try again later; its log says whether it was restarted or the session ended.",
    ),
    "a standby cancels in favour of recovery": (
        "Run the refresh again; nothing was published and what arrived is kept.",
    ),
    "a lock is held for longer than lock_timeout_s": (
        "Someone holds a lock on it; try again later.",
    ),
    "a statement takes longer than statement_timeout_s": (
        (
            "Raise statement_timeout_s of the file or the statement_timeout of the role, whichever"
            " is shorter, or publish less of it."
        ),
    ),
    "the database's disk is full": ("Free space on the database server, then try again.",),
    "all places for scans are taken": ("Run the refresh again when they are done.",),
    "a Python worker of Spark is killed": (
        (
            "Run the command again; what arrived is kept. If it repeats, set more"
            ' `"spark.driver.memory"` or fewer tasks (`"spark.master" = "local[2]"`) in [spark].'
        ),
    ),
    "the warehouse's disk is full when rows come": (
        "Free space there; what arrived is kept, and the last published version is untouched.",
    ),
}

# By tests that are elsewhere for what they start.
_ENGINES = "tests/source_agent/engines"
_VERSIONS = "tests/warehouse_agent/visible_versions/test_warehouse_versions.py"
ELSEWHERE: dict[str, tuple[str, ...]] = {
    f"{_ENGINES}/test_generic.py::test_an_instant_is_refused_and_its_text_in_utc_is_read": (
        "Publish a view that casts it to text in UTC.",
    ),
    f"{_ENGINES}/test_generic.py::test_an_interval_is_refused_and_its_text_is_read": (
        "Publish a view that casts it to text.",
    ),
    f"{_ENGINES}/test_generic.py::test_types_of_a_query_are_declared": (
        'Declare it: types = {"…" = "…"}, or ……',
        "Remove it from `types`.",
    ),
    "source_agent/engines/conformance/test_values.py"
    "::test_a_type_without_exact_values_is_refused": (
        'Set as_text = ["…"], or publish a view that casts it.',
        'Set as_text = ["…"], or publish a query with CAST.',
    ),
    f"{_ENGINES}/test_firebird.py::test_an_array_is_refused_by_name": (
        "Publish a query that selects its elements, such as …[1].",
    ),
    f"{_ENGINES}/test_firebird_zones.py"
    "::test_the_two_casts_of_the_remedy_tell_all_times_with_a_zone_apart": (
        (
            "Publish a query that casts it twice: CAST(… AS VARCHAR(60)) shows the zone,"
            " CAST(… AT TIME ZONE 'UTC' AS VARCHAR(60)) the instant."
        ),
    ),
    f"{_ENGINES}/test_mariadb.py::test_the_number_that_a_refusal_recommends_tells_all_members": (
        "Publish a query that selects CAST(… AS UNSIGNED), the number, beside it or instead.",
    ),
    f"{_ENGINES}/test_mariadb.py::test_character_sets_that_unicode_does_not_hold": (
        'Set as_text = ["…"] to read it as hexadecimal digits.',
    ),
    f"{_ENGINES}/test_mysql.py::test_a_package_that_a_login_needs_is_named": (
        "pip install 'driftline[mysql]', or connect with TLS (`ssl_ca` in the URL).",
    ),
    "tests/faults/test_killed.py::test_a_command_that_was_killed_is_told": (
        "Refresh again. If it repeats, the system's log may tell of too little memory.",
    ),
    "tests/pair/object_stores/test_at_once.py::test_an_attempt_that_is_too_old_publishes_nothing": (
        "Run the refresh again: what arrived is kept.",
    ),
    "tests/pair/refresh/test_distance.py::test_a_column_that_is_no_number_is_refused_by_name": (
        "Name a column that is published as a number, or remove `distance`.",
    ),
    "tests/pair/refresh/test_broken_text.py::test_no_refresh_publishes_it_or_misses_its_change": (
        (
            "Have the text corrected at the source, or published as bytes by a query:"
            " textsend(col::text) on PostgreSQL."
        ),
    ),
    "tests/pair/refresh/test_broken_text.py::test_a_name_that_is_not_utf8_is_named": (
        "Have its owner rename or replace it (ALTER … RENAME).",
    ),
    f"{_ENGINES}/test_postgresql_settings.py::test_a_server_that_hides_damage_is_refused": (
        "As a superuser: ALTER ROLE the agent's role SET … = off.",
    ),
    f"{_ENGINES}/test_postgresql_settings.py"
    "::test_money_whose_decimals_roles_see_differently_is_refused": (
        (
            "Give the agent's role the setting of those who write the amounts: ALTER ROLE the"
            " agent's role SET lc_monetary = '…' or '…'."
        ),
    ),
    f"{_ENGINES}/test_pooler.py::test_pooling_by_statement_is_refused": (
        (
            "Name the server itself in database.url, or have the pooler pool by transaction or by"
            " session (pool_mode of PgBouncer)."
        ),
    ),
    f"{_ENGINES}/test_pgpool.py::test_it_is_refused_declared_or_not": (
        (
            "Name the server itself in database.url, or a pooler that passes statements on as they"
            " are, such as PgBouncer."
        ),
    ),
    f"{_ENGINES}/rights/test_firebird.py::test_what_a_mapping_gives_is_listed": (
        "Leave the login one mapping to a role (RDB$AUTH_MAPPING).",
    ),
    f"{_ENGINES}/test_pooler.py::test_options_that_would_not_pass_are_refused": (
        (
            "Remove `options` from the URL, and have the DBA give the agent's role the same"
            " settings: ALTER ROLE the agent's role SET …"
        ),
    ),
    f"{_ENGINES}/test_pooler.py::test_a_refused_parameter_is_not_a_wrong_password": (
        (
            "Remove the parameter from database.url and from the environment (PG…), or have it"
            " added to the pooler's ignore_startup_parameters."
        ),
    ),
    f"{_ENGINES}/test_firebird.py::test_an_old_client_library_is_named": (
        (
            "Install the client library (libfbclient) of the server's release, or publish a query"
            " without that column, or with a CAST of it."
        ),
    ),
    f"{_ENGINES}/test_firebird.py::test_a_limit_of_the_server_is_named": (
        "Raise …, or publish less of the table.",
    ),
    "tests/conformance/test_driver_failures.py::test_a_transaction_that_a_trigger_refuses": (
        "Have a trigger ON TRANSACTION START, if there is one, let the agent pass.",
    ),
    f"{_VERSIONS}::test_versions_can_be_pinned": ("Read that one, or leave the version out.",),
    f"{_ENGINES}/test_owner_objects.py::test_a_function_that_changes_the_session_is_refused": (
        (
            "Have the function leave the setting as it found it, or publish columns that do not"
            " call it."
        ),
    ),
    f"{_ENGINES}/test_sqlite.py::test_a_reader_that_may_not_write_is_told_what_the_file_needs": (
        (
            "Keep the application running while the agent reads, or let the agent's account"
            " write to the folder, or leave WAL mode (PRAGMA journal_mode = DELETE), or publish a"
            " finished copy of the file, made with VACUUM INTO."
        ),
        (
            "Start the application, or open the file with the sqlite3 shell as its owner and read"
            " a table: that rolls back. The agent's account may not write and cannot."
        ),
    ),
    "tests/source_agent/cli/test_init.py::test_patterns_another_login_and_a_password_file": (
        (
            "Write the password into a file that only you can read and name it with"
            " --password-file, or set …."
        ),
    ),
    "tests/pair/since/test_claims.py::test_it_needs_a_word_about_deletes": (
        (
            'Ask the DBA for `deleted = "FLAG"` or `deletes = "never"` in the marker of a table'
            ' with a unique key, or write `proof = "keys"` in the fragment.'
        ),
    ),
    "tests/pair/since/test_claims.py::test_a_wrong_flag_is_refused_by_name": (
        "Mend the row, and have the database refuse such values (NOT NULL, CHECK).",
    ),
    "tests/pair/runs/test_freshness.py::test_another_program_in_it_fails_no_refresh": (
        "Move its folder away: the next refresh makes a new one.",
    ),
    "tests/source_agent/server/test_derive.py::test_what_the_file_cannot_say": (
        'Write derive = ["rows", "joins"].',
    ),
    "tests/source_agent/server/test_site_joins.py::test_what_is_not_offered": (
        (
            "Declare FOREIGN KEY … REFERENCES in the database. The"
            ' other relation needs derive = ["rows"], and no `scan`.'
        ),
    ),
    "tests/warehouse_agent/monitoring/test_notifications.py"
    "::test_a_test_message_says_who_answers": ("Set a `webhook`, a `command` or a `heartbeat`.",),
    "tests/pair/views/test_derived.py::test_withdrawn": (
        (
            "Nothing that is published changes. Ask the DBA to allow it again (`derive`), or take"
            " what is allowed now: driftline refresh … --accept-schema"
        ),
    ),
    "tests/pair/views/test_recipes.py::test_another_spark_or_legacy_setting": (
        "If that is right: driftline refresh … --accept-schema",
    ),
    "tests/warehouse_agent/differential/test_command.py::test_a_state_stands_in_for_the_old_file": (
        "Name the old file as well: driftline diff OLD NEW …",
    ),
    "tests/faults/test_pair.py::test_rows_lost_on_their_way": (
        "Run the refresh again; report it if it happens twice.",
    ),
    f"{_ENGINES}/test_postgresql_encodings.py::test_text_of_no_known_encoding_is_refused": (
        "Publish a query that reads text as bytes: convert_to(col, '…').",
    ),
    f"{_ENGINES}/test_postgresql_encodings.py"
    "::test_every_form_is_read_as_the_character_that_it_is": (
        "…Correct the text at the source, or publish a query that reads it as bytes.",
    ),
    "tests/pair/views/test_flips.py::test_somebody_else_wrote_the_table_of_versions": (
        (
            "Restore the last version that Driftline wrote; or move the folder away: the next"
            " refresh of a view makes a new one from the newest version of every table."
        ),
    ),
    "tests/pair/views/test_flips.py::test_two_commands_where_locks_exclude_nobody": (
        "Run the command again: it goes on from what was committed.",
    ),
    "tests/warehouse_agent/tasks/test_processes.py::test_a_process_that_is_killed_ends_the_step": (
        (
            "Run the command again. If it repeats, set a smaller `driver_share`, so that Spark"
            " does more."
        ),
    ),
    "tests/pair/parts/test_scan_hours.py::test_refused_then_in_part_then_completely": (
        "Run the refresh again then, or refresh it by key (…).",
    ),
}

# By nobody, and why.
_REPORT = "it asks to report a mistake of ours, and no input is known that makes it"
_RELEASE = "it needs two releases of which one is newer than this"
_OLDER = "it needs a release that is older than this one, to publish a version once more"
_INSTALL = "it installs a package, which a test must not do to the environment that it runs in"
_MACHINE = "it needs a machine with more memory"
_CHECKED = "the words of a query are checked before, and none is known that Spark does not support"
_STORED = "the server checks text when it is stored, and no SQL stores text that is none"
_TYPE = "no server that tests run has a type that is not listed"
_COLLISION = "it needs two keys with one hash of 64 bits, under a secret seed"
_CLUSTER = "it needs machines of a cluster that differ, and a test has one machine"
NOBODY: dict[str, tuple[str, ...]] = {
    _TYPE: ("Publish a query that casts it to CHAR.",),
    _REPORT: (
        "Nothing of the view was published. Report it; the next refresh recomputes the view.",
        "Please report it with the log; run with --debug for the traceback.",
        "Report it: the last published version is untouched.",
        "Report it: this is a mistake of Driftline, and nothing was published.",
        "`driftline verify` finds damaged files; report it if the disk is healthy.",
        "Read the file by `warehouse_agent.views.inputs.load`.",
        "It is for tests alone: unset it, or see ….",
        "None are known here.",
    ),
    _RELEASE: (
        "Install a release of it that goes with this one of driftline.",
        "Install that release, or a newer one, here as well.",
        "Install the same release on both sides, or the newer one at the source first.",
        "Install the same release on both sides.",
        "Refresh it: that completes the entry.",
    ),
    _OLDER: (
        (
            "Read a newer version. If it is the newest: refresh with the release of 28 November"
            " 2026 (commit 7806bd7) until it publishes a version; or move the table's folder away"
            " for a new first load."
        ),
    ),
    _INSTALL: (
        "Install libfbclient2.",
        "Install one, or run: pip install 'driftline[java]'",
        "Run: pip install 'driftline[demo]'",
        "Run: pip install 'driftline[enroll]'. It is needed for this command only.",
        "Run: pip install 'driftline[warehouse]'",
        "Run: pip install 'driftline[warehouse,object-stores]'",
        "pip install 'driftline[dump]'",
        "pip install 'driftline[…]'",
        "Repair or update it.",
        "Try another release of the driver; with --debug there is a traceback.",
        "Uninstall one of them.",
    ),
    _STORED: ("Set as_text for it in source.toml, or cast it to OCTETS in a query.",),
    _CHECKED: ("Write the query without it: Spark does not support it.",),
    _COLLISION: (
        "Remove `read_at_most` from the fragment, so that all rows are compared.",
        "Run the refresh again: it compares all rows.",
    ),
    _MACHINE: (
        "The agent's machine has too little memory.",
        (
            "If so many rows can have changed, give this process more memory; if not, check what"
            " runs at the source's address. Nothing was published."
        ),
    ),
    _CLUSTER: (
        (
            "Ask for what the cluster has free (`spark.executor.memory`, `spark.executor.cores`,"
            " `spark.cores.max`), let the workers reach this machine (`spark.driver.host`), or wait"
            " longer: `executors_wait_s` in [warehouse]."
        ),
        (
            "Driver and executors need one folder: a file system that all of them mount at this"
            " path, or an object store."
        ),
        "Have `database.url` name one server, not a list or a balancer of several.",
        (
            "Install driftline[warehouse] there, with [object-stores] if the warehouse lies in a"
            " bucket; or name a Python that has them: `spark.pyspark.python`."
        ),
        "Install the same ones, or name a Python that has them: `spark.pyspark.python`.",
        "Install the same release on both; `driftline doctor` compares them.",
        (
            "Is it up, and reachable from here? `spark.master` names it. It was waited for up to"
            " … s, the `executors_wait_s` of [warehouse]."
        ),
        (
            "Its executors need the driver's version of Python, with pyarrow and pandas:"
            " `spark.pyspark.python`."
        ),
        "Run the command again when the cluster is well; what arrived is kept.",
    ),
}
