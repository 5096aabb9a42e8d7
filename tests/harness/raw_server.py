"""A gRPC server of the source's service that sends bytes, whatever they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from warehouse_agent.config import Source


@contextmanager
def served(calls: Mapping[str, grpc.RpcMethodHandler]) -> Iterator[Source]:
    """Serve these calls by name; yield where."""
    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.method_handlers_generic_handler("driftline.Source", dict(calls))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Source("erp", f"127.0.0.1:{port}", insecure=True)
    finally:
        server.stop(None)
