"""Functions that a view may call, by their Spark names: deterministic, of one row, of no session.

A function that is not listed is refused: every user's function, and every new one until somebody
has read what it does. Missing on purpose: aggregates, generators, functions of the clock, of the
session, of random numbers, of files, partitions or the catalogue, of time zones other than UTC
(their rules change with Java), `format_string` and `printf` (which print where an object lies in
memory, and times in the machine's zone), and JSON, XML and CSV parsers (whose errors depend on
options).
"""

from __future__ import annotations

_CONDITIONS = """
coalesce greatest if ifnull isnan isnotnull isnull least nullif nullifzero nvl nvl2 zeroifnull
"""
_NUMBERS = """
abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos
cosh cot csc degrees e exp expm1 factorial floor getbit hypot ln log log10 log1p log2 mod negative
pi pmod positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign
signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract width_bucket
"""
_TEXTS = """
ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains crc32
decode elt encode endswith find_in_set format_number hash hex initcap instr lcase left
len length levenshtein like locate lower lpad ltrim luhn_check mask md5 octet_length overlay
position regexp regexp_count regexp_extract regexp_instr regexp_like regexp_replace
regexp_substr repeat replace reverse right rlike rpad rtrim sha sha1 sha2 soundex split_part
startswith substr substring substring_index to_char to_number to_varchar translate trim
try_to_number ucase unbase64 unhex upper xxhash64
"""
_TIMES = """
add_months date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime hour last_day
make_date make_timestamp_ntz minute month monthname months_between next_day quarter second
timestamp_micros timestamp_millis timestamp_seconds to_date to_timestamp to_timestamp_ntz trunc
try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday weekofyear year
"""
_CASTS = """
bigint binary boolean cast date decimal double float int smallint string timestamp tinyint
"""

TIMES = frozenset(_TIMES.split())
FUNCTIONS = frozenset(" ".join((_CONDITIONS, _NUMBERS, _TEXTS, _TIMES, _CASTS)).split())
