"""`run.py rank`: which kernel of a program is worth the work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from graph.commands.options import STARTED, AsJson, Command
from harness.options import Option


class RankCommand(AsJson, Command):
    """The kernels of a program by what could be gained, from a trace of torch's profiler (JSON or .json.gz, SGLang's and vLLM's too): time, calls,
    share, share of the speed of light where the trace holds shapes, and whether this program can make them faster. Without a GPU in
    the trace: its operators."""

    trace: Annotated[Path, Option("TRACE", positional=True)]
    """What torch.profiler exported (record_shapes=True adds shapes)."""
    top: Annotated[int, Option("N")] = Field(default=20, ge=1)
    """So many rows."""

    def go(self) -> int:
        from graph.ranking import SAID, rank

        STARTED.set()
        found = rank(self.trace)
        if self.as_json:
            rows = [
                {
                    "name": row.name, "calls": row.calls, "total_us": row.total_us, "share": row.total_us / found.total_us if found.total_us else 0.0,
                    "gain_us": row.gain_us, "gain_is_upper_bound": row.share_of_sol is None and row.gain_us > 0, "share_of_sol": row.share_of_sol, "taken": row.taken, "kind": row.kind, "kernel": row.kernel,
                    "operators": dict(row.operators), "shapes": [{"operands": shape, "calls": calls} for shape, calls in row.shapes.most_common()],
                }
                for row in found.rows[: self.top]
            ]  # fmt: skip
            print(
                json.dumps(
                    {"device": found.device, "total_us": found.total_us, "rows": rows, "notes": found.notes}, indent=1
                )
            )
            return 0
        what = "kernels" if found.on_gpu else "operators (their own time)"
        print(
            f"{what} of {self.trace.name} on {found.device or 'an unnamed device'}: {found.total_us / 1e3:.2f} ms, {len(found.rows)} of them"
        )
        print(f"{'gain ms':>10} {'total ms':>9} {'share':>6} {'calls':>7} {'of SOL':>7} {'by':>8}  kernel")
        for row in found.rows[: self.top]:
            share = "" if row.share_of_sol is None else f"{row.share_of_sol:.0%}"
            part = row.total_us / found.total_us if found.total_us else 0.0
            gain = f"{'< ' if not share and row.gain_us else ''}{row.gain_us / 1e3:.3f}"
            print(
                f"{gain:>10} {row.total_us / 1e3:9.3f} {part:6.1%} {row.calls:7} {share:>7} {row.taken:>8}  {row.name}"
            )
            like = f"; --kernel {row.kernel} does the same" if row.kernel else ""
            print(f"{'':53}  {row.kind + '; ' if row.kind else ''}{SAID[row.taken]}{like}")
            for shape, calls in row.shapes.most_common(1):
                print(f"{'':53}  {calls} x {shape[:150]}")
        if any(row.share_of_sol is None and row.gain_us for row in found.rows[: self.top]):
            print("gain is time x (1 - share of SOL); < where that share is not known: all of the time, at most")
        for note in found.notes:
            print(note)
        return 0
