"""Every limit of the contract, with its unit in its name and its reason beside it.

Limits are per message, not per exchange, so no legitimate table exceeds them. Budgets that a DBA
may set are in her file, not here.
"""

from __future__ import annotations

PROTOCOL_VERSION = 1  # changes when an old peer would misread a message
FINGERPRINT_VERSION = 1  # changes when any row would get other bytes or another fingerprint
DATABASE_FINGERPRINT_VERSION = 2  # the same for hashes made by a database

# Messages. A frame is cut so that its message stays below the maximum.
MESSAGE_BYTES_MAX = 1 << 20  # small enough to resume cheaply, large enough to fill a line
PIECE_BYTES_MIN = 64 << 10  # of a larger reply: 17 kbit/s, if it takes NO_PROGRESS_S
PIECE_S_MAX = 3.0  # of a larger piece on the line, which may become ten times as slow meanwhile
LINE_HELD_BYTES_MAX = 1 << 20  # sent, and not yet carried: by gRPC, the relay, system and routers
FRAME_BODY_BYTES_TARGET = 3 << 20  # before compression; about 1 MiB or less afterwards
FRAME_BODY_BYTES_MAX = 72 << 20  # one row of the largest size still fits
FRAME_ROWS_MAX = 1 << 16  # a block is transposed at once
RECEIVE_BYTES_MAX_SOURCE = 4 << 20  # what the source takes in one message
MESSAGE_PARTS_MAX = 1 << 14  # fields of one to the source: bounds of 64 ranges of 128 key columns
COUNTED_BYTES_MIN = 64 << 10  # smaller messages take 4 MB of memory, whatever they hold
RECEIVE_BYTES_MAX_WAREHOUSE = 80 << 20  # a frame of one largest row, incompressible
REPLY_PARTS_MAX = 1 << 20  # fields of one to the warehouse: 80 MB; 170,000 relations have as many

# Rows.
ROW_BYTES_MAX = 64 << 20  # decision 10: a larger value is refused by table, key and column
COLUMNS_MAX = 4096  # more than any of the three engines allows in a table
KEY_BYTES_MAX = 8192  # a key is held, compared and printed
NAME_BYTES_MAX = 1024  # of a relation; longer names are refused
FOLLOWING_RELATIONS_MAX = 256  # that an `Open` names; a statement each, before the snapshot

# Derivations: far more than a query has, and little to check before anything is read.
DERIVATION_COMPARISONS_MAX = 64
DERIVATION_DEPTH_MAX = 8  # levels of AND, OR and NOT
DERIVATION_VALUES_MAX = 1000  # literals of one predicate
DERIVATION_BYTES_MAX = 64 << 10  # of the message

# Comparison. Ranges bound what both sides hold, whatever the table's size.
RANGES_MAX = 1 << 18  # 4 MiB of sums at either side, and in each of the tasks that add them up
SEGMENTS_MAX = 256  # of a partition: 3 kB in `Open`
STRATUM_CELLS = 32  # of one byte; the estimate has a standard deviation of 12 %
ROW_HASHES_MAX = 1 << 22  # 8 bytes each on the line, 16 in memory; beyond it, everything is sent
DIGESTS_PER_MESSAGE = 1 << 16  # 512 KiB
# A number with many divisors: its table folds to nearly any size. It decodes 1.7 million changes.
THIRD_CELLS_MAX = 720_720  # of a sketch's finest table: 35 MB at the source
SKETCH_KEYS_MAX = 1 << 31  # half the field: noise looks like a key in one of two cases
SAMPLE_CELLS_MAX = 1 << 13  # of one byte; the estimated share of differing cells errs by 1 to 6 %
CELLS_PER_MESSAGE = 1 << 16  # 512 KiB
CHUNKS_MAX = 1 << 21  # listed by one opening: 16 MiB at the source, for 64 GiB of rows and more
CHUNK_BYTES_SHIFT_MIN = 12  # of 4 KiB in the mean: shorter ones make a long list
CHUNK_BYTES_SHIFT_MAX = 20  # of 1 MiB: a source holds the rows of one
CHUNKS_PER_MESSAGE = 1 << 16  # 512 KiB
CELLS_TAKEN_MAX = 100  # sets of cells in one comparison, with the opening's; each is decoded
GROUPED_KEYS_MAX = 1 << 20  # in all groups: 20 to 35 MB at the source, 120 MB if keys travel
GROUP_HASHES_MAX = 1 << 19  # rows of groups hashed one by one, and a quarter of all: 100 MB
KEYS_PER_GROUP_MAX = 1 << 12  # of one group: larger ones save nothing
GROUP_KEYS_PER_MESSAGE = 1 << 16  # 768 KiB if every group has one key
PART_RANGES_MAX = 64  # read beside the named keys
NAMED_BYTES_MAX = 32 << 20  # of keys that travel themselves: 700,000 of 40 bytes
NAMED_BODY_BYTES_MAX = FRAME_BODY_BYTES_TARGET  # of one message of keys, before compression
NAMED_BODY_BYTES_SENT = 512 << 10  # as a warehouse sends them: 35 kbit/s in a source's idle time
PEELING_ROUNDS_MAX = 200  # of one decoding; a decodable table needs a few dozen
BITMAP_SLACK_BYTES = 4096  # added by zstd to incompressible data

# A differential of two files at the warehouse, for each file.
DIFF_BLOCK_ROWS = 1 << 14  # numpy is efficient, and the arrays stay in the cache
DIFF_AGING_ROWS = 1 << 16  # covers a mean displacement of as many rows
DIFF_AGING_BYTES = 16 << 20  # 65,536 records of 150 bytes, and their hashes
DIFF_LEFT_BYTES = 32 << 20  # of both files: 150,000 inserts or misplaced records of 150 bytes
DIFF_KEYS_BYTES = 32 << 20  # 4 million keys; larger files must be sorted, or are joined by Spark

# The source's memory, and its work at the same time.
ROWS_HELD_BYTES = 32 << 20  # of rows, from sending their hashes to the reply
TILE_HELD_BYTES = 32 << 20  # 100,000 rows of some 300 bytes
EXCHANGE_RPCS_MAX = 48  # streams; the DBA's `scans_at_once` limits the reading ones
EXCHANGE_RPCS_PER_CLIENT_MAX = 8  # one for each fragment that a cluster refreshes at once
DESCRIBE_RPCS_MAX = 16  # short; most wait for the database
DESCRIBE_RPCS_PER_CLIENT_MAX = 4  # a warehouse asks one after the other
DESCRIBE_RPCS_READING_MAX = 2  # those that query the database, one per client; `grants` counts them
ACTIVITY_RELATIONS_MAX = 10_000  # of one call: its reply stays below a few MB
ACTIVITY_BYTES_MAX = 32  # of an identity or a flag, which are hashes
MARK_BYTES_MAX = 64 << 10  # of a mark: it names each partition of a table, some 20 bytes each
BEHIND_ROWS_MAX = 1 << 21  # whose positions are held: 16 MB, and twice that while they are sorted
UNMARKED_ROWS_MAX = 1 << 15  # named by an audit, 16 bytes each
GONE_ROWS_MAX = 1 << 15  # deleted rows behind a mark that is claimed, 8 bytes each
HEALTH_RPCS_MAX = 16  # a probe every few seconds, answered at once
HEALTH_RPCS_PER_CLIENT_MAX = 2
WATCH_RPCS_MAX = 8  # of health, for balancers: each lasts, and holds a thread
WATCH_RPCS_PER_CLIENT_MAX = 2
# Twice what a client may have at a time: gRPC counts a call until the source has dropped it, which
# is a little after its client has the answer, and resets the streams beyond.
CONNECTION_RPCS_MAX = 32  # of one connection
RPCS_MAX = 96  # a thread each: the calls above, and those being refused

# Time.
HEARTBEAT_S = 5.0  # longest time between two messages of a scanning source
NO_PROGRESS_S = 30.0  # a silent peer is disconnected
CONTROL_S = 10.0  # deadline of a control call
OPEN_S = 10.0  # until the first `Open` of a stream, which a warehouse sends at once
DATABASE_SILENCE_S = 900.0  # no row from a database: long enough for a sort or an aggregate
DATABASE_SILENCE_S_MAX = 3600.0  # the most that a DBA may set
NO_ADVANCE_S = 3700.0  # a source that sends Progress without more rows is disconnected
# From an opening to its end: before a verdict nothing bounds the rows that a source only counts.
EXCHANGE_S_MAX = 30 * 86_400.0  # longer than any database should hold a snapshot

LOCAL_LOG_S = 3600.0  # between two lines of the log about one error whose text stays at the source
LOCAL_REFERENCES_MAX = 1024  # remembered for that: some 150 KB

SAMPLES_MAX = 10  # keys shown in an error
ROWS_COMPARED = 1_000  # rows of `check --reads`: some 50 statements by index, under a second
ROWS_COMPARED_MAX = 1_000_000  # that a DBA may ask for: keys of the sample are in memory
REPEATED_BATCHES_MAX = 100  # batches in which a repeatable key comes again: more has no end
JOIN_REFERENCES_MAX = 4  # foreign keys from a relation to another one that chooses its rows
JOINED_RELATIONS_MAX = 64  # ways from a relation to others, in a description that names them
JOIN_ROWS_FACTOR = 16  # rows that may be read of relations that reference one, for each of its rows
REFERENCES_MAX = 256  # foreign keys in a description: few tables have ten
POLICIES_MAX = 100  # row security policies that are named; the digest covers all
ERROR_CHARACTERS_MAX = 1 << 16  # of one text of an error, in which names of any length may be
COLUMNS_NAMED_MAX = 10  # columns named in one error, a sentence each

assert DIGESTS_PER_MESSAGE * 8 < MESSAGE_BYTES_MAX < RECEIVE_BYTES_MAX_SOURCE
assert PIECE_BYTES_MIN < MESSAGE_BYTES_MAX
assert PIECE_S_MAX * 10 <= NO_PROGRESS_S
assert FRAME_BODY_BYTES_MAX > ROW_BYTES_MAX
assert RECEIVE_BYTES_MAX_WAREHOUSE > FRAME_BODY_BYTES_MAX
assert CELLS_PER_MESSAGE * 8 < MESSAGE_BYTES_MAX
assert CHUNKS_PER_MESSAGE * 8 < MESSAGE_BYTES_MAX
assert GROUP_KEYS_PER_MESSAGE * (4 + 8) < MESSAGE_BYTES_MAX
assert NAMED_BODY_BYTES_MAX + GROUP_KEYS_PER_MESSAGE * 8 < RECEIVE_BYTES_MAX_SOURCE
assert EXCHANGE_RPCS_MAX + DESCRIBE_RPCS_MAX + HEALTH_RPCS_MAX + WATCH_RPCS_MAX < RPCS_MAX
assert CONNECTION_RPCS_MAX >= 2 * (
    EXCHANGE_RPCS_PER_CLIENT_MAX
    + DESCRIBE_RPCS_PER_CLIENT_MAX
    + HEALTH_RPCS_PER_CLIENT_MAX
    + WATCH_RPCS_PER_CLIENT_MAX
)
assert max(ACTIVITY_RELATIONS_MAX, PART_RANGES_MAX * 2 * 128) <= MESSAGE_PARTS_MAX
assert UNMARKED_ROWS_MAX * 16 + GONE_ROWS_MAX * 8 + MARK_BYTES_MAX < MESSAGE_BYTES_MAX
assert HEARTBEAT_S * 3 < NO_PROGRESS_S
assert NO_ADVANCE_S < EXCHANGE_S_MAX
assert DATABASE_SILENCE_S <= DATABASE_SILENCE_S_MAX < NO_ADVANCE_S - NO_PROGRESS_S
