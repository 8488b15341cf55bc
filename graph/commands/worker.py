"""`run.py worker ADDRESS`: lend this machine's devices to a cluster."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from graph.commands.options import STARTED, Command
from harness.options import Option


class WorkerCommand(Command):
    """Lend this machine's GPUs, or shares of its CPU, to the cluster of that scheduler (docs/cluster.md)."""

    address: Annotated[str, Option("ADDRESS", positional=True)]
    """Address of the scheduler, such as tls://host:8786."""
    gpus: Annotated[str | None, Option("0,1")] = None
    """GPUs to work on (default: all that nvidia-smi lists)."""
    cores: int | None = Field(default=None, ge=1)
    """No GPU but N equal shares of the CPU's cores."""
    tls: Annotated[Path | None, Option("DIR")] = None
    """The cluster's certificate and key."""
    insecure: bool = False
    """No TLS beyond this machine: anybody may run code here."""
    folder: Annotated[Path | None, Option("DIR")] = None
    """Where it works, on a disk of its own machine."""
    contest: Annotated[float, Option("S", usual="3600")] = Field(
        default_factory=lambda: float(os.environ.get("ASTROLABE_CLUSTER_CONTEST_S", "3600")), ge=0
    )
    """Time a binary against itself at joining and after so long again; 0: never."""
    with_parent: Annotated[bool, Option(hidden=True)] = False

    def go(self) -> int:
        from graph.runs import RunError
        from harness.cluster import places, security
        from harness.cluster.supervisor import Supervisor
        from harness.cluster.worker import Orders

        if self.cores and self.gpus is not None:
            raise RunError("a worker lends --gpus or --cores, not both")
        address = security.check_address(self.address, self.tls, insecure=self.insecure)
        security.of(self.tls)
        cores = places.own_cores()
        if self.cores:
            lent = places.of_cores(self.cores, cores)
        else:
            chosen = None if self.gpus is None else [one.strip() for one in self.gpus.split(",") if one.strip()]
            lent = places.of_gpus(chosen, cores, places.gpus())
        if self.folder is not None and not self.folder.is_dir():
            raise RunError(f"--folder {self.folder} is no folder")
        folder = Path(tempfile.mkdtemp(prefix="astrolabe-lent-", dir=self.folder))
        more: dict[str, Any] = {
            name: float(value)
            for name in ("stall_s", "parked_s", "room_bytes")
            if (value := os.environ.get(f"ASTROLABE_CLUSTER_{name.upper()}"))
        }

        def orders(place: places.ClusterPlace, inside: Path) -> Orders:
            tls = str(self.tls.resolve()) if self.tls else ""
            return Orders(address=address, place=place, folder=str(inside), tls=tls, contest_s=self.contest, **more)

        STARTED.set()
        for place in lent:
            print(f"{place.name}: cores {', '.join(map(str, place.cores))}", file=sys.stderr, flush=True)
        Supervisor(orders, lent, folder, lambda text: print(text, file=sys.stderr, flush=True)).serve(
            with_parent=self.with_parent
        )
        if self.with_parent and self.tls:  # killed, it could not remove the folder that it made for this
            shutil.rmtree(self.tls.parent, ignore_errors=True)
        return 0
