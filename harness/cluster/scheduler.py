"""Dask's scheduler with what Astrolabe's jobs need of it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import dask.config
from distributed import Scheduler
from distributed.security import Security
from distributed.versions import VersionMismatchWarning

FAILURES = 1
"""A job whose worker dies is tried once more, elsewhere; then it is taken to be the reason (harness/engines/dask.py)."""
SWITCH_S = 0.0005
"""Seconds after which a thread of Python's that computes lets another one go on: an answer passes four threads, and with Python's 5 ms it
waited 16 to 90 ms where others were at work."""
SILENT_S = 60
"""A worker that has not been heard of for so long is taken to be gone."""


def configure() -> None:
    """Before anything of Dask's is made. What the user has set (DASK_..., dask.yaml) stays."""
    sys.setswitchinterval(SWITCH_S)
    given = dask.config.collect()
    usual = {
        "distributed.scheduler.allowed-failures": FAILURES,
        "distributed.scheduler.worker-ttl": f"{SILENT_S} s",
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": False,
        "distributed.comm.timeouts.connect": "10 s",
        "distributed.comm.timeouts.tcp": "30 s",
        "distributed.worker.http.routes": ["distributed.http.health"],
        # Every part would ask the driver for the first GPU's load twice a second, and a worker look at its own stack every
        # 10 ms, beside what is timed; where NVML does not answer, none of them would start.
        "distributed.diagnostics.nvml": False,
        "distributed.worker.profile.enabled": False,
        "distributed.admin.large-graph-warning-threshold": "1 GB",
    }
    dask.config.set({name: value for name, value in usual.items() if dask.config.get(name, None, config=given) is None})
    # Its table of versions, patch levels of Python among them: what matters is compared and said by us.
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)
    logging.getLogger("distributed.worker").addFilter(_is_no_table_of_versions)


def _is_no_table_of_versions(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Mismatched versions found")


def serve(host: str, port: int, security: Security | None, dashboard: str, said: Callable[[str], None]) -> None:
    """Runs until SIGTERM or SIGINT; `said` is told the address once it listens."""
    configure()
    if not dashboard:
        dask.config.set({"distributed.scheduler.http.routes": ["distributed.http.health"]})

    async def run() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        scheme = "tls" if security else "tcp"
        how: dict[str, Any] = {"security": security} if security else {}
        async with Scheduler(
            host=f"{scheme}://{host}",
            port=port,
            dashboard=bool(dashboard),
            dashboard_address=dashboard or "127.0.0.1:0",
            **how,
        ) as scheduler:
            said(scheduler.address)
            await stop.wait()

    asyncio.run(run())
