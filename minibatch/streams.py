"""Streams of a GPU on which parts of a step run beside others; in place where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class Branch:
    """What may run beside what follows it in the current stream, until `join`. Tensors that it reads must live until then."""

    def __init__(self, device: str, priority: int = 0) -> None:
        self.stream = torch.cuda.Stream(priority=priority) if device == "cuda" else None
        self.forked = False

    @contextlib.contextmanager
    def fork(self) -> Iterator[None]:
        """The block's work waits for what was done in the current stream so far."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        self.forked = True
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """The current stream waits for all that was forked."""
        if self.stream is not None and self.forked:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.forked = False
