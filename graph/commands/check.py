"""`run.py check`: what is wrong with a kernel's folder, without a GPU."""

from __future__ import annotations

import argparse
import json
import sys

from graph.commands.options import EXIT_SAME, Parser


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py check", allow_abbrev=False,
        description="Look at a kernel's folder without a GPU: the spec, inputs and the reference at small sizes, each baseline compiled where its "
        "compiler is here and run where it can be (CUDA in an emulation), the first plan. Exit code 0 without a fault, 3 with one.",
    )  # fmt: skip
    made.add_argument("folder", metavar="FOLDER|NAME", help="the kernel's folder, or its name in the catalog")
    made.add_argument("--device", choices=("cuda", "cpu"), help="only this device's baselines")
    made.add_argument(
        "--json", action="store_true", help="a list of {kind, what, said} on standard output, nothing else there"
    )
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph.checking import check

    if hasattr(asked, "starting"):
        asked.starting.cancel()
    tell = sys.stderr.isatty() and not asked.json
    lines = []
    for line in check(
        asked.folder, asked.device, lambda said: print(f"  {said} ...", file=sys.stderr) if tell else None
    ):
        lines.append(line)
        if not asked.json:
            print(f"{line.kind:8}{line.what}: {line.said}", flush=True)
    faults = sum(line.kind == "fault" for line in lines)
    if asked.json:
        print(json.dumps([{"kind": one.kind, "what": one.what, "said": one.said} for one in lines], indent=1))
    elif faults:
        print(f"{faults} {'fault' if faults == 1 else 'faults'}")
    return EXIT_SAME if faults else 0
