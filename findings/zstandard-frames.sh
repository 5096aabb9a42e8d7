#!/usr/bin/env bash
# zstandard 0.25.0 (Python): a file of two frames, which `cat` and parallel compressors make and the
# format allows, is read whole by copy_stream, open and stream_reader with read_across_frames, but
# decompress, decompressobj and read_to_iter return the first frame and end without a word.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet zstandard==0.25.0
"$work/venv/bin/python" - >"$work/seen" <<'PYTHON'
import io

import zstandard

file = zstandard.compress(b"1,a\n") + zstandard.compress(b"2,b\n")
reader, copied = zstandard.ZstdDecompressor(), io.BytesIO()
reader.copy_stream(io.BytesIO(file), copied)
print("copy_stream", copied.getvalue())
print("open", zstandard.open(io.BytesIO(file)).read())
print("stream_reader", reader.stream_reader(io.BytesIO(file), read_across_frames=True).read())
print("decompress", reader.decompress(file))
print("decompressobj", reader.decompressobj().decompress(file))
print("read_to_iter", b"".join(reader.read_to_iter(io.BytesIO(file))))
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
copy_stream b'1,a\n2,b\n'
open b'1,a\n2,b\n'
stream_reader b'1,a\n2,b\n'
decompress b'1,a\n'
decompressobj b'1,a\n'
read_to_iter b'1,a\n'
SEEN
