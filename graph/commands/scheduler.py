"""`run.py scheduler`: what a cluster's workers and users meet at."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from graph.commands.options import Parser, number


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py scheduler", allow_abbrev=False,
        description="The scheduler of a cluster (docs/cluster.md). It listens on this machine only, unless --host says more.",
    )  # fmt: skip
    made.add_argument("--host", default="127.0.0.1", metavar="HOST", help="an address of this machine (127.0.0.1)")
    made.add_argument("--port", type=number(int, 0), default=8786, metavar="N", help="(8786; 0 takes a free one)")
    made.add_argument(
        "--tls", type=Path, metavar="DIR", help="certificate and key of the cluster, made there where DIR holds none"
    )
    made.add_argument(
        "--insecure", action="store_true", help="without TLS beyond this machine: anybody may run code on it"
    )
    made.add_argument("--dashboard", default="", metavar="ADDRESS", help="Dask's own pages, such as 127.0.0.1:8787")
    made.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from harness.cluster import scheduler, security

    security.demanded(asked.host, asked.tls, insecure=asked.insecure)
    folder = security.made(asked.tls) if asked.tls else None
    if asked.with_parent:
        threading.Thread(target=_until_the_parent_ends, daemon=True).start()
    asked.starting.cancel()
    scheduler.serve(
        asked.host, asked.port, security.of(folder), asked.dashboard, lambda address: print(address, flush=True)
    )
    return 0


def _until_the_parent_ends() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(0)
