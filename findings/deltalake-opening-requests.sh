#!/usr/bin/env bash
# deltalake 1.6.6 and a table in an S3 bucket (moto 5.2.5), at version 12 with a checkpoint of version 10:
# to open it reads that one checkpoint, of some kB, in eleven requests, and each of the two entries after it
# twice. Opened once more by the same process it costs the same again. At 30 ms a request that is half a
# second before the first row.
set -euo pipefail
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1 "moto[server,s3]==5.2.5"
"$work/venv/bin/python" -W ignore - >"$work/seen" 2>"$work/errors" <<'PYTHON' || { cat "$work/errors"; exit 1; }
import threading
import urllib.request
from collections import Counter

import pyarrow
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

asked = Counter()
application = DomainDispatcherApplication(create_backend_app)


def counted(environ, start):
    name = environ["PATH_INFO"].rsplit("/", 1)[-1]
    kind = "LIST" if "list-type" in environ["QUERY_STRING"] else environ["REQUEST_METHOD"]
    asked[kind, "" if kind == "LIST" else name] += 1
    return application(environ, start)


server = make_server("127.0.0.1", 0, counted, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
options = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "some",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "conditional_put": "etag",
}
bucket = urllib.request.Request(options["AWS_ENDPOINT_URL"] + "/lake", method="PUT")
urllib.request.urlopen(bucket).close()
quiet = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
for n in range(13):
    rows = pyarrow.table({"x": [n]})
    write_deltalake(
        "s3://lake/t", rows, mode="append", storage_options=options, post_commithook_properties=quiet
    )
    if n == 10:
        DeltaTable("s3://lake/t", storage_options=options).create_checkpoint()
costs = []
for _ in range(2):
    asked.clear()
    table = DeltaTable("s3://lake/t", storage_options=options)
    costs.append(dict(asked))
print("version", table.version(), "files", len(table.file_uris()))
for (kind, name), times in sorted(costs[0].items()):
    print(f"{times} {kind} {name.lstrip('0')}".strip())
print("opened again:", "the same" if costs[1] == costs[0] else costs[1])
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
version 12 files 13
11 GET 10.checkpoint.parquet
2 GET 11.json
2 GET 12.json
1 GET _last_checkpoint
1 LIST
opened again: the same
SEEN
