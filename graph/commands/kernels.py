"""`run.py kernels`: the catalog."""

from __future__ import annotations

import json

from graph.commands.options import AsJson, Command


class KernelsCommand(AsJson, Command):
    """List the kernels of the catalog."""

    def go(self) -> int:
        from kernels import catalog

        specs = {name: catalog.load(name).spec for name in catalog.names()}
        if self.as_json:
            print(json.dumps({name: spec.model_dump(mode="json") for name, spec in specs.items()}, indent=1))
            return 0
        width = max(map(len, specs), default=0)
        for name, spec in specs.items():
            print(f"{name:<{width}}  {spec.summary}")
        return 0
