"""Where a rewrite says what it is: `@rule(...)` on the one function of its file that is called `rewrite`.

    @rule("cuda", expected="16 bytes instead of one element a load", speedup=2.0, helps={"memory"}, after=("restrict_pointers",))
    def rewrite(source: Source, facts: Facts) -> str | None:
        ...

The file's name is the rewrite's name, its folder is its phase. Nothing else names it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

from harness.records import Bound, DeviceFacts, Outcome
from kernels.spec import Device, Frozen, Spec
from nodes.rewrites.syntax.source import Source, Unsupported

PHASES = ("normalize", "arithmetic", "memory", "launch", "specialize", "cpu")
"""Folders of rewrites: which comes first where no `after` says so."""
FORM = 1.0001
"""What a rewrite promises that only brings a text into form: more than nothing, so that plans keep it."""
EVERYTHING: frozenset[Bound] = frozenset({"memory", "latency", "compute", "launch"})


class Facts(Frozen):
    """What a rewrite may rely on beside the source."""

    spec: Spec
    device: DeviceFacts


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """One step."""

    name: str
    """Its file's."""
    phase: str
    """Its folder's."""
    apply: Callable[..., str | None]
    """`rewrite(source, facts) -> str | None`: the new text, or None where it does not apply."""
    languages: frozenset[str]
    """The backends it works on, from {"cuda", "cpu"}."""
    expected: str
    """What it should do to which number, one sentence."""
    prior: float | Callable[[Facts], float]
    helps: Collection[Bound] = EVERYTHING
    """Which bounds of a Finding it is for."""
    after: tuple[str, ...] = ()
    """What it goes on from, by name, where both are applied; else phases go in order (PHASES), and names within."""
    variants: tuple[str, ...] = ()
    """Arguments that `rewrite` takes as a third parameter, each a form of its own, named `name:argument` in plans."""
    alone: bool = False
    """It goes on from what was measured, so it is planned by itself and never from the baseline."""
    normalizes: bool = False
    """It only brings a text into form, so every plan has it where it applies."""
    risks: tuple[Outcome, ...] = ()
    """How a candidate fails where it was wrong."""
    once: str = ""
    """A word of what it writes: a text that has it is left alone."""

    def speedup(self, facts: Facts) -> float:
        """What to expect where it applies, before anything was measured."""
        return self.prior(facts) if callable(self.prior) else self.prior

    @property
    def forms(self) -> tuple[str, ...]:
        """As plans name it: plainly, and with each of its variants."""
        return (self.name, *(f"{self.name}:{variant}" for variant in self.variants))

    def __call__(self, source: Source, facts: Facts, *variant: str) -> str | None:
        """The new text; None where it is the old one, where the source has a form that the rewrite does not understand, or where
        the rewrite has been there."""
        if self.once and self.once in source.text:
            return None
        try:
            text = self.apply(source, facts, *variant)
        except Unsupported:
            return None
        if text is None or text == source.text:
            return None
        return None if facts.spec.build.language == "c" and _brings_cpp(source.text, text) else text


_CPP = re.compile(
    r"#[ \t]*include[ \t]*<(?:c[a-z]+|algorithm|type_traits)>|\b(?:std::|template\b|namespace\b|constexpr\b|auto\b|\w+_cast<|\w+_t\{)"
    r'|\[[&=]\]|extern "C"'
)


def _brings_cpp(before: str, after: str) -> bool:
    """Whether a rewrite of a source in C has written C++."""
    return len(_CPP.findall(after)) > len(_CPP.findall(before))


_registered: dict[str, Rewrite] = {}


def rule(
    *languages: str, speedup: float | Callable[[Facts], float] = FORM, **said: Any
) -> Callable[[Callable[..., str | None]], Rewrite]:
    """Registers a function `rewrite`, of which Rewrite's fields say the rest. `speedup`: the planner's prior, a number or a
    function of the facts; not above 1 for what is only worth trying once the rest is done."""

    def register(function: Callable[..., str | None]) -> Rewrite:
        *_, phase, name = function.__module__.split(".")
        made = Rewrite(name=name, phase=phase, apply=function, languages=frozenset(languages), prior=speedup, **said)
        _registered[name] = made
        return made

    return register


@cache
def catalog() -> dict[str, Rewrite]:
    """Every rewrite by name, in the order of names."""
    package = importlib.import_module(__package__)
    for phase in PHASES:
        folder = importlib.import_module(f"{package.__name__}.{phase}")
        for module in pkgutil.iter_modules(folder.__path__):
            importlib.import_module(f"{folder.__name__}.{module.name}")
    unknown = {name for made in _registered.values() for name in made.after} - _registered.keys()
    if unknown:
        raise ValueError(f"a rewrite comes after {', '.join(sorted(unknown))}, which no file is called")
    return dict(sorted(_registered.items()))


@cache
def ordered(language: Device) -> tuple[Rewrite, ...]:
    """Those of a language in the order in which they are applied. Raises ValueError where `after` goes in a circle."""
    mine = {name: made for name, made in catalog().items() if language in made.languages}
    waits = TopologicalSorter({name: mine.keys() & set(made.after) for name, made in mine.items()})
    try:
        waits.prepare()
    except CycleError as error:
        raise ValueError(f"{', '.join(sorted(set(error.args[1])))} come after each other") from error
    found, ready = list[Rewrite](), list[str]()
    while waits.is_active():
        ready = sorted([*ready, *waits.get_ready()], key=lambda name: (PHASES.index(mine[name].phase), name))
        found.append(mine[ready.pop(0)])
        waits.done(found[-1].name)
    return tuple(found)
