"""Every limit of the contract, with its unit in its name and its reason beside it.

Limits are per message, not per exchange, so that no legitimate table runs into them. What a DBA
may set (budgets) is in her file, not here.
"""

from __future__ import annotations

PROTOCOL_VERSION = 1  # changes when an old peer would misread a message
FINGERPRINT_VERSION = 1  # changes when any row would get other bytes or another fingerprint
DATABASE_FINGERPRINT_VERSION = 2  # of the kind that a database makes; the same rule

# Messages. A frame is cut so that its message stays below the maximum.
MESSAGE_BYTES_MAX = 1 << 20  # small enough to resume cheaply, large enough to fill a line
FRAME_BODY_BYTES_TARGET = 3 << 20  # before compression; about 1 MiB or less afterwards
FRAME_BODY_BYTES_MAX = 72 << 20  # one row of the largest size still fits
FRAME_ROWS_MAX = 1 << 16  # a block that is transposed at once
RECEIVE_BYTES_MAX_SOURCE = 4 << 20  # what the source takes in one message
RECEIVE_BYTES_MAX_WAREHOUSE = 80 << 20  # a frame of one largest row, incompressible

# Rows.
ROW_BYTES_MAX = 64 << 20  # decision 10: a larger value is refused by table, key and column
COLUMNS_MAX = 4096  # more than any of the three engines allows in a table
KEY_BYTES_MAX = 8192  # a key is held, compared and printed
NAME_BYTES_MAX = 1024  # of a relation; longer names are refused unread

# Comparison. Ranges bound what both sides hold, whatever the table's size.
RANGES_MAX = 1 << 18  # 4 MiB of sums at either side, and in each of the tasks that add them up
SEGMENTS_MAX = 256  # of a partition: 3 kB in `Open`
STRATUM_CELLS = 32  # of a byte: the estimate has a standard deviation of 12 %
ROW_HASHES_MAX = 1 << 22  # 8 bytes each on the line, 16 in memory; beyond it, everything is sent
DIGESTS_PER_MESSAGE = 1 << 16  # 512 KiB
# A number of many divisors: its table folds to nearly any size, and tells 1.7 million changed rows.
THIRD_CELLS_MAX = 720_720  # of a sketch's finest table: 35 MB at the source
SKETCH_KEYS_MAX = 1 << 31  # half the field: a quotient of noise is a key every second time
SAMPLE_CELLS_MAX = 1 << 13  # of a byte: the share of cells that differ is known to 1 to 6 %
CELLS_PER_MESSAGE = 1 << 16  # 512 KiB
CELLS_TAKEN_MAX = 100  # times in one comparison, the opening's included; each costs a decoding
GROUP_KEYS_MAX = 1 << 20  # named in units: 20 to 35 MB at the source
GROUP_HASHES_MAX = 1 << 19  # rows of units hashed one by one, and a quarter of all units: 100 MB
UNIT_KEYS_MAX = 1 << 12  # of one unit: more are worth one hash no longer than these
UNIT_KEYS_PER_MESSAGE = 1 << 16  # 768 KiB, where every unit has one key
PART_RANGES_MAX = 64  # read beside the named keys
PEELING_ROUNDS_MAX = 200  # of one decoding; a table that decodes needs a few dozen
BITMAP_SLACK_BYTES = 4096  # of zstd, over what does not compress

# The source's memory and its work at once.
ROWS_HELD_BYTES = 32 << 20  # of identified rows, between their hashes and the reply
TILE_HELD_BYTES = 32 << 20  # 100,000 rows of some 300 bytes
EXCHANGE_RPCS_MAX = 48  # streams; how many are read at once is the DBA's `scans_at_once`
EXCHANGE_RPCS_PER_CLIENT_MAX = 8  # one for each fragment that a cluster refreshes at a time
DESCRIBE_RPCS_MAX = 16  # short ones; most wait for the database
DESCRIBE_RPCS_PER_CLIENT_MAX = 4  # a warehouse asks one after the other
DESCRIBE_RPCS_READING_MAX = 2  # that ask the database, one of each client: what `grants` allows for
HEALTH_RPCS_MAX = 16  # a probe asks once in some seconds and is answered at once
HEALTH_RPCS_PER_CLIENT_MAX = 2
RPCS_MAX = 96  # each a thread: the ones above, and those that are being refused

# Time.
HEARTBEAT_S = 5.0  # a source that scans says so at least this often
NO_PROGRESS_S = 30.0  # a silent peer is given up
CONTROL_S = 10.0  # deadline of a control call
OPEN_S = 10.0  # to the first `Open` of a stream, which a warehouse sends at once
DATABASE_SILENCE_S = 900.0  # a database delivers nothing: long enough for a sort or an aggregate
DATABASE_SILENCE_S_MAX = 3600.0  # what a DBA may set instead
NO_ADVANCE_S = 3700.0  # a source that says Progress, and whose rows do not grow, is given up

SAMPLES_MAX = 10  # keys shown in an error
POLICIES_MAX = 100  # row security policies that are named; the digest is of all
COLUMNS_NAMED_MAX = 10  # columns that one error names: each has a sentence

assert DIGESTS_PER_MESSAGE * 8 < MESSAGE_BYTES_MAX < RECEIVE_BYTES_MAX_SOURCE
assert FRAME_BODY_BYTES_MAX > ROW_BYTES_MAX
assert RECEIVE_BYTES_MAX_WAREHOUSE > FRAME_BODY_BYTES_MAX
assert CELLS_PER_MESSAGE * 8 < MESSAGE_BYTES_MAX
assert UNIT_KEYS_PER_MESSAGE * (4 + 8) < MESSAGE_BYTES_MAX
assert EXCHANGE_RPCS_MAX + DESCRIBE_RPCS_MAX + HEALTH_RPCS_MAX < RPCS_MAX
assert HEARTBEAT_S * 3 < NO_PROGRESS_S
assert DATABASE_SILENCE_S <= DATABASE_SILENCE_S_MAX < NO_ADVANCE_S - NO_PROGRESS_S
