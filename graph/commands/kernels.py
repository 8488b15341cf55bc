"""`run.py kernels`: the catalog."""

from __future__ import annotations

import argparse
import json

from graph.commands.options import Parser


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="run.py kernels", allow_abbrev=False, description="List the kernels of the catalog.")
    made.add_argument("--json", action="store_true", help="as JSON")
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from kernels import catalog

    specs = {name: catalog.load(name).spec for name in catalog.names()}
    if asked.json:
        print(json.dumps({name: spec.model_dump(mode="json") for name, spec in specs.items()}, indent=1))
        return 0
    width = max(map(len, specs), default=0)
    for name, spec in specs.items():
        print(f"{name:<{width}}  {spec.summary}")
    return 0
