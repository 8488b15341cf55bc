"""When which part of a step ran: spans in lanes, for the picture that shows what overlaps."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

SHOWN = 8
"""Batches in a picture: more cannot be told apart."""
SKIPPED = 4
"""Batches before them, in which threads start and memory is first touched."""
STAGES = ("sampling", "features", "copy", "compute", "backward", "waiting")
"""Kinds of a span, in the order of the key."""
TRAINING, STEP = "training", "step"
"""Lanes: the model's forward and backward computation; the same with sampling before it."""
ENDS = ((TRAINING, "backward"), (STEP, "compute"))
"""Lane and stage of a batch's last span."""
KERNELS = (
    ("sampling", r"sample_neighbors|relabel|insert|count_firsts|number|look_up|clear"),
    ("features", r"gather"),
    ("copy", r"[Mm]emcpy"),
    ("backward", r"scatter|backward|adam|Adam|multi_tensor"),
)
"""Stage -> what the names of its kernels have in them: a CUDA graph says no more of a kernel than its name."""


@dataclass(frozen=True)
class Span:
    lane: str
    stage: str
    """One of STAGES."""
    begin_s: float
    end_s: float


class SpanTrace:
    """Collects spans until there are `room` of them; on a GPU between events of the current stream."""

    def __init__(self, device: str, room: int = 40 * (SHOWN + SKIPPED)) -> None:
        self.device, self.room = device, room
        self.spans: list[Span] = []
        self._events: list[tuple[str, str, Any, Any]] = []
        if device == "cuda" and room:
            torch.cuda.synchronize()
            self._first = torch.cuda.Event(enable_timing=True)
            self._first.record()
            self._first.synchronize()
            self._began = time.perf_counter()

    def add(self, lane: str, stage: str, begin_s: float, end_s: float) -> None:
        """A span by time.perf_counter's clock."""
        if len(self.spans) < self.room:
            self.spans.append(Span(lane, stage, begin_s, end_s))

    @contextlib.contextmanager
    def span(self, lane: str, stage: str) -> Iterator[None]:
        """What the block does, on the host or, on a GPU, in the current stream."""
        if len(self._events) + len(self.spans) >= self.room:
            yield
        elif self.device == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            yield
            end.record()
            self._events.append((lane, stage, begin, end))
        else:
            begin_s = time.perf_counter()
            yield
            self.add(lane, stage, begin_s, time.perf_counter())

    def finish(self) -> list[Span]:
        """All spans, in seconds from the first; on a GPU it waits for what was recorded."""
        if self._events:
            torch.cuda.synchronize()
            for lane, stage, begin, end in self._events:
                times = (self._began + self._first.elapsed_time(event) / 1e3 for event in (begin, end))
                self.spans.append(Span(lane, stage, *times))
            self._events = []
        return from_zero(self.spans)


def from_zero(spans: list[Span]) -> list[Span]:
    first = min((span.begin_s for span in spans), default=0.0)
    return sorted(
        (Span(span.lane, span.stage, span.begin_s - first, span.end_s - first) for span in spans),
        key=lambda span: span.begin_s,
    )


def window(spans: Sequence[Span], skipped: int = SKIPPED, shown: int = SHOWN) -> list[Span]:
    """What overlaps `shown` batches after `skipped` others, by the last span that each batch has in its lane.

    All, where nothing says where a batch ends: kernels of a captured step are few steps already.
    """
    for lane, stage in ENDS:
        steps = [span for span in spans if (span.lane, span.stage) == (lane, stage)]
        if steps:
            before = skipped if len(steps) > skipped else 0
            end = steps[before:][:shown][-1].end_s
            begin = steps[before - 1].end_s if before else min(span.begin_s for span in spans)
            return from_zero(
                [
                    Span(span.lane, span.stage, max(span.begin_s, begin), min(span.end_s, end))
                    for span in spans
                    if span.end_s > begin and span.begin_s < end
                ]
            )
    return list(spans)


def stage_of(kernel: str) -> str:
    """The stage of a kernel by its name; what no pattern knows is the model's own computation."""
    return next((stage for stage, pattern in KERNELS if re.search(pattern, kernel)), "compute")


def of_kernels(events: list[tuple[str, int, int, int]]) -> list[Span]:
    """Spans of (name, stream, begin in ns, duration in ns), a lane a stream, those with most time first."""
    busy: dict[int, int] = {}
    for _, stream, _, duration in events:
        busy[stream] = busy.get(stream, 0) + duration
    lanes = {stream: f"stream {at + 1}" for at, stream in enumerate(sorted(busy, key=lambda one: -busy[one]))}
    return from_zero(
        [
            Span(lanes[stream], stage_of(name), begin / 1e9, (begin + duration) / 1e9)
            for name, stream, begin, duration in events
        ]
    )


def kernels_of(replay: Callable[[], Any], times: int) -> list[tuple[str, int, int, int]]:
    """(name, stream, begin in ns, duration in ns) of the kernels that `times` calls of `replay` run on the GPU, by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            replay()
        torch.cuda.synchronize()
    found = [
        (event.name(), event.device_resource_id(), event.start_ns(), event.duration_ns())
        for event in seen.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    return sorted(found, key=lambda event: event[2])


def of_replays(replay: Callable[[], Any], times: int = 3) -> list[Span]:
    """Spans of the kernels that `times` calls of `replay` run on the GPU."""
    return of_kernels(kernels_of(replay, times))
