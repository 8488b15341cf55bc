"""`run.py check`: what is wrong with a kernel's folder, without a GPU."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Literal

from graph.commands.options import EXIT_SAME, STARTED, Command
from harness.options import Option


class CheckCommand(Command):
    """Look at a kernel's folder, or a PyTorch module, without a GPU: the spec, inputs and the reference at small sizes, each
    baseline compiled where its compiler is here and run where it can be (CUDA in an emulation), the first plan. Exit code 0
    without a fault, 3 with one."""

    folder: Annotated[str, Option("FOLDER|NAME|FILE", positional=True)]
    """The kernel's folder, its name in the catalog, or a module's file or captured folder."""
    device: Literal["cuda", "cpu"] | None = None
    """Check only this device's baselines."""
    as_json: Annotated[bool, Option(name="json")] = False
    """A list of {kind, what, said} on standard output, nothing else there."""

    def go(self) -> int:
        from graph.checking import check

        STARTED.set()
        tell = sys.stderr.isatty() and not self.as_json
        lines = []
        for line in check(
            self.folder, self.device, lambda said: print(f"  {said} ...", file=sys.stderr) if tell else None
        ):
            lines.append(line)
            if not self.as_json:
                print(f"{line.kind:8}{line.what}: {line.said}", flush=True)
        faults = sum(line.kind == "fault" for line in lines)
        if self.as_json:
            print(json.dumps([{"kind": one.kind, "what": one.what, "said": one.said} for one in lines], indent=1))
        elif faults:
            print(f"{faults} {'fault' if faults == 1 else 'faults'}")
        return EXIT_SAME if faults else 0
