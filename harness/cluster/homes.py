"""Which device a question goes to: the one that has answered its asker before, whose processes, inputs and references are warm there."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence


class Homes:
    """The homes of one client's questions. Two askers that took turns on two devices would each find their own put away at
    every question.

    Safe for several threads.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.home: dict[str, str] = {}
        """Asker -> place."""
        self.busy: Counter[str] = Counter()

    def take(self, asker: str, ready: Sequence[str]) -> str:
        """The asker's home where nothing of ours is at work there, else another idle one; "" where all are busy.

        Who has no home gets one, where the fewest others live. `give` it back.
        """
        with self.lock:
            idle = [place for place in ready if not self.busy[place]]
            if not idle:
                return ""
            lodgers = Counter(self.home.values())
            home = self.home.get(asker)
            chosen = home if home in idle else min(idle, key=lambda place: lodgers[place])
            if home not in ready:
                self.home[asker] = chosen
            self.busy[chosen] += 1
            return chosen

    def give(self, place: str) -> None:
        with self.lock:
            if place:
                self.busy[place] -= 1

    def leave(self, asker: str) -> None:
        with self.lock:
            self.home.pop(asker, None)
