"""Tokens and money that the models may still use, per role and for the run; asked before every call.

A call reserves what it may cost at most, so that several threads together cannot pass a limit that each alone keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nodes.options import Limits, Role
from nodes.policies.prices import Price
from nodes.roles import Usage

WARN_SHARE = 0.8


class BudgetEnded(Exception):
    """The next call could pass a limit. The message is one sentence that names the limit and what is left of it."""


@dataclass
class Call:
    """A reservation. The caller sets `usage` once the answer is there; a call that failed costs nothing."""

    usage: Usage | None = None


class Budget:
    """`spent` is what the run used before this object was made. Safe for several threads."""

    def __init__(self, limits: Limits, spent: dict[Role, Usage], say: Callable[[str, str], None]) -> None:
        self.limits = limits
        self._before = dict(spent)
        self._since: dict[Role, Usage] = {}
        self._reserved: dict[int, tuple[Role, int, float]] = {}
        self._say = say
        self._warned: set[str] = set()
        self._ended: dict[str, str] = {}
        self._changed = threading.Condition()

    def usage(self) -> dict[Role, Usage]:
        """What was spent since this object was made, by role."""
        with self._changed:
            return dict(self._since)

    @contextmanager
    def call(self, role: Role, tokens_in: int, tokens_out: int, price: Price | None) -> Iterator[Call]:
        """Reserve a call of at most that many tokens; waits where it fits only once calls in flight have ended.

        Raises BudgetEnded, before anything was spent, where a limit would be passed; from then on for every call that
        counts against that limit, so that a run does not flicker between the model and its fallback. A money limit
        cannot hold back a model whose price is unknown.
        """
        needed = {False: float(tokens_in + tokens_out), True: price.usd(tokens_in, tokens_out) if price else 0.0}
        call = Call()
        with self._changed:
            while not self._fits(role, needed):
                self._changed.wait()
            self._reserved[id(call)] = (role, tokens_in + tokens_out, needed[True])
        try:
            yield call
        finally:
            with self._changed:
                del self._reserved[id(call)]
                if call.usage is not None:
                    self._since[role] = self._since.get(role, Usage()).plus(call.usage)
                warnings = self._near(role)
                self._changed.notify_all()
            for text in warnings:
                self._say("budget", text)

    def _limited(self, role: Role) -> Iterator[tuple[str, float, Role | None, bool]]:
        """(name, limit, whose, is it money) of every limit that this role's calls count against."""
        limits = self.limits
        if limits.tokens is not None:
            yield "token budget", limits.tokens, None, False
        if limits.money_usd is not None:
            yield "money budget", limits.money_usd, None, True
        if role in limits.role_tokens:
            yield f"{role}'s token budget", limits.role_tokens[role], role, False
        if role in limits.role_money_usd:
            yield f"{role}'s money budget", limits.role_money_usd[role], role, True

    def _spent(self, whose: Role | None, money: bool) -> float:
        usages = [u for ledger in (self._before, self._since) for owner, u in ledger.items() if whose in (None, owner)]
        return sum((u.money_usd or 0.0) if money else u.tokens_in + u.tokens_out for u in usages)

    def _in_flight(self, whose: Role | None, money: bool) -> float:
        return sum(usd if money else tokens for owner, tokens, usd in self._reserved.values() if whose in (None, owner))

    def _fits(self, role: Role, needed: dict[bool, float]) -> bool:
        for name, limit, whose, money in self._limited(role):
            spent = self._spent(whose, money)
            if name not in self._ended and (spent + needed[money] > limit or spent >= limit):
                self._ended[name] = (
                    f"the {name} ends here: {_amount(spent, money)} of {_amount(limit, money)} are used, "
                    f"and the {role}'s next call may take {_amount(needed[money], money)}"
                )
            if name in self._ended:
                raise BudgetEnded(self._ended[name])
        return all(
            self._spent(whose, money) + self._in_flight(whose, money) + needed[money] <= limit
            for _, limit, whose, money in self._limited(role)
        )

    def _near(self, role: Role) -> list[str]:
        texts = []
        for name, limit, whose, money in self._limited(role):
            spent = self._spent(whose, money)
            if spent >= WARN_SHARE * limit and name not in self._warned:
                self._warned.add(name)
                texts.append(
                    f"{WARN_SHARE:.0%} of the {name} is used: {_amount(spent, money)} of {_amount(limit, money)}"
                )
        return texts


def _amount(figure: float, money: bool) -> str:
    return f"${figure:.4f}" if money else f"{figure:,.0f} tokens"
