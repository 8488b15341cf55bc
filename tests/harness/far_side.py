"""A far side in this process, so that what a comparison asks, and in which order, can be seen and its clocks be scripted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.checks.layout import Layout
from harness.device import ArgumentBuffers
from kernels.catalog import Kernel
from kernels.spec import Size, Spec, Tensor, Workload

Compute = Callable[["FarSide", dict[str, torch.Tensor]], None]
"""What one call does, on the arena's own tensors by name."""


class FarSide:
    """Offers what a Contest uses of harness.processes.worker.RequestLoop. `told` is shared with other sides: (name, what)."""

    def __init__(self, name: str, one: Any, compute: Compute, told: list[tuple[str, Any]] | None = None) -> None:
        self.name, self.one, self.compute = name, one, compute
        self.told = [] if told is None else told
        self.mapped: set[int] = set()
        self.stopped = True
        self.calls = self.rests = 0
        self.call_s = 1e-3
        """What a call takes, by its clock; and what that clock lacks a request against ours."""
        self.lacks_s = 1e-4
        self.others_s = 0.0
        """CPU seconds of other threads than the first in a call."""
        self.copied_s: tuple[float, float] | None = None
        """What it says of its copies, seconds a call: plain ones and others."""
        self.library = ""

    def map(self, buffers: ArgumentBuffers) -> None:
        self.mapped.add(buffers.id)

    def pin(self, apart: bool) -> None:
        self.told.append((self.name, "pin" if apart else "free"))

    def put_on(self, core: int) -> None:
        self.told.append((self.name, f"core {core}"))

    def pause(self) -> None:
        self.stopped = True
        self.told.append((self.name, "pause"))

    def first_thread(self) -> tuple[float, int]:
        return self.calls * self.call_s, 0

    def cpu_seconds(self) -> float:
        return self.calls * (self.call_s + self.others_s)

    def rest(self) -> None:
        assert self.stopped
        self.rests += 1

    def proceed(self) -> None:
        self.stopped = False
        self.told.append((self.name, "proceed"))

    def foreign_code(self) -> str:
        return self.library

    def request(self, message: dict[str, Any], **_how: Any) -> dict[str, Any]:
        self.proceed()
        answer = self.answer(message)
        self.pause()
        return answer

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["op"] == "plan":
            self.told.append((self.name, "plan"))
            return {"graph": True}
        assert message["op"] == "time"
        self.told.append((self.name, list(message["order"])))
        for _ in range(message["repeat"]):
            for slot in message["order"]:
                self.calls += 1
                self.compute(self, {t.name: self.one.bench.read(slot, t) for t in self.one.kernel.spec.tensors})
        made = len(message["order"]) * message["repeat"]
        said = {"seconds": self.call_s * made}
        if self.copied_s is not None:
            said |= {"copied": self.copied_s[0] * made, "copied_otherwise": self.copied_s[1] * made}
        return said


def timed_request(worker: FarSide, message: dict[str, Any]) -> tuple[dict, float]:
    """In place of engines.process.timed_request: our clock is scripted too."""
    answer = worker.request(message)
    if not isinstance(answer["seconds"], float):
        return answer, 1.0
    return answer, sum(answer.get(name, 0.0) for name in ("seconds", "copied", "copied_otherwise")) + worker.lacks_s


def negate(_far: FarSide, tensors: dict[str, torch.Tensor]) -> None:
    torch.neg(tensors["input"], out=tensors["out"])


class Negation(Kernel):
    """out = -input, of any dtype and size; a second input `table` is read by nobody and kept between calls."""

    has_reference, reference_asks_dtype, properties, reference_on = True, False, None, "cpu"

    def reference_axes(self) -> tuple[str, ...]:
        return ()

    def reference(self, /, **arguments: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": -arguments["input"]}


def negation(dtype: str, n: int, *, table: int = 0) -> tuple[Negation, Workload]:
    """Of n elements, beside a constant table of so many."""
    from pathlib import Path

    workload = Workload(axes={"n": n, "rows": max(table, 1)}, dtype=dtype)  # type: ignore[arg-type]
    kept = (Tensor(name="table", role="input", shape=("rows",), constant=True),) if table else ()
    tensors = (Tensor(name="input", role="input", shape=("n",)), *kept, Tensor(name="out", role="output", shape=("n",)))
    spec = Spec(
        name="negation",
        summary="out = -input",
        axes=("n", "rows"),
        dtypes=(dtype,),  # type: ignore[arg-type]
        arguments=(*tensors, Size(name="n")),
        workloads=(workload,),
    )
    return Negation(spec, Path(f"/nowhere/negation/{dtype}/{n}")), workload


def guards(layout: Layout, buffers: ArgumentBuffers, name: str) -> dict[str, torch.Tensor]:
    """The last byte before a tensor and the first one behind each of its copies, to be written to."""
    tensor = next(t for t in layout.spec.tensors if t.name == name)
    return {"before": layout.head(buffers, tensor)[:, -1:], "behind": layout.tail(buffers, tensor)[:, :1]}
