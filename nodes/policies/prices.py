"""What a model's tokens cost. An unknown price is None, never a guess.

The table that ships (`prices.json`) holds list prices of api.openai.com, so it is used for that server only: the same
model name elsewhere may cost something else, or nothing. The user's table (`--prices FILE`, same form) goes before it
and holds for any server. Cached input is counted at the full price: a bill may be lower than what is shown, not higher.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from kernels.spec import Frozen

LISTED = Path(__file__).with_name("prices.json")
LISTED_HOST = "api.openai.com"
_DATED = re.compile(r"^(?P<model>.+?)-\d{4}-\d{2}-\d{2}$")  # gpt-5-2025-08-07 costs what gpt-5 does


class Price(Frozen):
    """US dollars per million tokens."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)

    def usd(self, tokens_in: int, tokens_out: int) -> float:
        return (tokens_in * self.input + tokens_out * self.output) / 1e6


class _Table(Frozen):
    note: str = ""
    usd_per_million_tokens: dict[str, Price]


def _read(path: Path) -> dict[str, Price]:
    try:
        return _Table.model_validate_json(path.read_text()).usd_per_million_tokens
    except OSError as error:
        raise ValueError(f"the price table {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        where = error.errors()[0]
        raise ValueError(
            f"the price table {path} is wrong at {'.'.join(map(str, where['loc'])) or 'its top'}: {where['msg']} "
            '(form: {"usd_per_million_tokens": {"MODEL": {"input": 1.25, "output": 10}}})'
        ) from None


class Prices:
    """Raises ValueError, one sentence naming the field, where the user's table is wrong."""

    def __init__(self, own: Path | None = None, *, base_url: str = f"https://{LISTED_HOST}/v1") -> None:
        self._table = _read(LISTED) if urlsplit(base_url).hostname == LISTED_HOST else {}
        if own is not None:
            self._table |= _read(own)

    def of(self, model: str) -> Price | None:
        """The price of that model, with or without a date at the end of its name; None where it is unknown."""
        if model in self._table:
            return self._table[model]
        dated = _DATED.match(model)
        return self._table.get(dated["model"]) if dated else None
