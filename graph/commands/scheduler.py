"""`run.py scheduler`: what a cluster's workers and users meet at."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Annotated

from pydantic import Field

from graph.commands.options import STARTED, Command
from harness.options import Option


class SchedulerCommand(Command):
    """The scheduler of a cluster (docs/cluster.md). It listens on this machine only, unless --host says more."""

    host: Annotated[str, Option("HOST")] = "127.0.0.1"
    """An address of this machine."""
    port: Annotated[int, Option(usual="8786; 0 takes a free one")] = Field(default=8786, ge=0)
    tls: Annotated[Path | None, Option("DIR")] = None
    """Certificate and key of the cluster, made there where DIR holds none."""
    insecure: bool = False
    """No TLS beyond this machine: anybody may run code on it."""
    dashboard: Annotated[str, Option("ADDRESS")] = ""
    """The pages of Dask itself, such as 127.0.0.1:8787."""
    with_parent: Annotated[bool, Option(hidden=True)] = False

    def go(self) -> int:
        from harness.cluster import scheduler, security

        security.require_tls(self.host, self.tls, insecure=self.insecure)
        folder = security.make_certificate(self.tls) if self.tls else None
        if self.with_parent:
            threading.Thread(target=_until_the_parent_ends, daemon=True).start()
        STARTED.set()
        scheduler.serve(
            self.host, self.port, security.of(folder), self.dashboard, lambda address: print(address, flush=True)
        )
        return 0


def _until_the_parent_ends() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(0)
