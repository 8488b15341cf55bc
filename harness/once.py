"""What is worked out once in a process, whichever of its threads asks first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Locks:
    """A lock for each key."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    def of(self, key: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(key, threading.Lock())


class Once(Generic[Answer]):
    """Answers by key, for as long as the process lives. Who asks while another works one out waits for that one, and for no other."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._locks = Locks()

    def get(self, key: str, work: Callable[[], Answer]) -> Answer:
        """Raises what `work` raises; then nothing is kept, and who asks next tries again."""
        with self._locks.of(key):
            if key not in self._answers:
                self._answers[key] = work()
            return self._answers[key]
