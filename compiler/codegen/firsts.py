"""The elements in front of a row by one pass: rounds of a maximum and its place, as selects.py says them, are one search among keys in registers."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.codegen.text import Text
from compiler.draft.expressions import walk
from compiler.draft.partition import Member
from compiler.draft.printing import Scope


@dataclass(eq=False)
class FirstGroup:
    """Rounds of one selection: the extremes and their places, first round first. `keys`: what holds them."""

    best: list[Member]
    places: list[Member]
    keys: str = ""

    @property
    def members(self) -> list[Member]:
        return [*self.best, *self.places]


def first_groups(text: Text, folds: list[Member]) -> list[FirstGroup]:
    """Selections of two rounds or more, of floats."""
    groups: dict[Member, FirstGroup] = {}
    for member in [m for m in folds if m.definition.first]:
        known = list(walk([text.value(member)]))
        compared = [expr.args[1] for expr in known if expr.op == "eq" and expr.args[1].op == "fold"]
        best = [expr.args[0] for expr in compared if expr.type == "float"]
        before = [expr.args[0] for expr in known if expr.op == "fold" and expr.args[0].definition.first == 1]
        group = groups.setdefault(before[0] if before else member, FirstGroup([], []))
        if len(best) == 1 and len(group.places) == member.definition.first - 1:
            group.best.append(best[0])
            group.places.append(member)
    return [group for group in groups.values() if len(group.places) > 1]


def open_keys(text: Text, group: FirstGroup, slots: str) -> str:
    """The line that declares them; the pass that computes the elements puts them there."""
    group.keys = text.fold_names[group.best[0]] = text.fresh("first_keys")
    text.keys[group.best[0]] = f"{group.keys}[item][{text.lane_name}] = first_key<{_falling(group)}>"
    return f"unsigned {group.keys}[{slots}][{text.width}] = {{}};"


def print_firsts(text: Text, top: Scope, group: FirstGroup) -> None:
    found, places, count = text.fresh("firsts"), text.fresh("first_places"), len(group.places)
    top.line(f"unsigned {found}[{count}];")
    top.line(f"int {places}[{count}];")
    top.line(f"team_first<Threads, Team, Split>({group.keys}, team_member, team_step, {found}, {places});")
    for rank, (best, place) in enumerate(zip(group.best, group.places, strict=True)):
        for member, value in (
            (best, f"first_value<{_falling(group)}>({found}[{rank}])"),
            (place, f"is_row ? {places}[{rank}] : 0"),
        ):
            name = text.fold_names[member] = text.fresh(f"{member.definition.origin}_{member.definition.kind}")
            top.line(f"[[maybe_unused]] const {text.fold_type(member)} {name} = {value};")


def _falling(group: FirstGroup) -> str:
    return str(group.best[0].definition.kind == "max").lower()
