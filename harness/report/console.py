"""rich's Console for whatever words: what is shown there is inert. Plain streams: harness/report/inert.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from harness.report.inert import escape


class Console(rich.console.Console):
    """rich's own escape sequences get through; text can neither move the cursor nor colour, hide or reorder what is around it."""

    def render(self, *arguments: Any, **how: Any) -> Iterable[Segment]:
        for segment in super().render(*arguments, **how):
            yield segment if segment.control else segment._replace(text=escape(segment.text))
