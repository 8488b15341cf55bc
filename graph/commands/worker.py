"""`run.py worker ADDRESS`: lend this machine's devices to a cluster."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from graph.commands.options import Parser, number


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py worker", allow_abbrev=False,
        description="Lend this machine's GPUs, or shares of its CPU, to the cluster of that scheduler (docs/cluster.md).",
    )  # fmt: skip
    made.add_argument("address", metavar="ADDRESS", help="of the scheduler, such as tls://host:8786")
    what = made.add_mutually_exclusive_group()
    what.add_argument("--gpus", metavar="0,1", help="only these (all that nvidia-smi lists)")
    what.add_argument("--cores", type=number(int, 1), metavar="N", help="no GPU but N equal shares of the CPU's cores")
    made.add_argument("--tls", type=Path, metavar="DIR", help="the cluster's certificate and key")
    made.add_argument(
        "--insecure", action="store_true", help="without TLS beyond this machine: anybody may run code here"
    )
    made.add_argument("--folder", type=Path, metavar="DIR", help="where it works, on a disk of its own machine")
    made.add_argument(
        "--contest", type=number(float, 0), metavar="S",
        default=float(os.environ.get("ASTROLABE_CLUSTER_CONTEST_S", "3600")),
        help="time a binary against itself at joining and after so long again; 0: never (3600)",
    )  # fmt: skip
    made.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph.runs import RunError
    from harness.cluster import places, security
    from harness.cluster.supervisor import Supervisor
    from harness.cluster.worker import Orders

    address = security.checked(asked.address, asked.tls, insecure=asked.insecure)
    security.of(asked.tls)
    cores = places.own_cores()
    if asked.cores:
        lent = places.of_cores(asked.cores, cores)
    else:
        chosen = None if asked.gpus is None else [one.strip() for one in asked.gpus.split(",") if one.strip()]
        lent = places.of_gpus(chosen, cores, places.gpus())
    if asked.folder is not None and not asked.folder.is_dir():
        raise RunError(f"--folder {asked.folder} is no folder")
    folder = Path(tempfile.mkdtemp(prefix="astrolabe-lent-", dir=asked.folder))
    more = {
        name: float(value)
        for name in ("stall_s", "parked_s", "room_bytes")
        if (value := os.environ.get(f"ASTROLABE_CLUSTER_{name.upper()}"))
    }

    def orders(place: places.Place, inside: Path) -> Orders:
        tls = str(asked.tls.resolve()) if asked.tls else ""
        return Orders(address=address, place=place, folder=str(inside), tls=tls, contest_s=asked.contest, **more)

    asked.starting.cancel()
    for place in lent:
        print(f"{place.name}: cores {', '.join(map(str, place.cores))}", file=sys.stderr, flush=True)
    Supervisor(orders, lent, folder, lambda text: print(text, file=sys.stderr, flush=True)).serve(
        with_parent=asked.with_parent
    )
    if asked.with_parent:  # killed, it could not remove the folder that it made for this
        shutil.rmtree(asked.tls.parent, ignore_errors=True)
    return 0
