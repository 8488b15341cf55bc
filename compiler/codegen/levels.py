"""One pass over packs: windows loaded, what the pack shares computed once, the lanes, what they made stored."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from compiler.codegen.printer import Printer
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr, loads_of, make, walk
from compiler.draft.index import Index
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, _bare, compares_places, indent
from compiler.draft.tensors import Buffer

TRIVIAL = ("const", "scalar", "fold")


@dataclass
class Pass:
    """The text of one pass for one pack: `before` belongs to the level around it."""

    loads: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    lanes: list[str] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)

    def lines(self, indent: int) -> list[str]:
        return [("    " * indent + line).rstrip() for line in [*self.loads, *self.shared, *self.lanes, *self.stores]]


def hoist(text: Text, roots: list[Expr], level: int, scope: Scope, lanes: dict[Window, str]) -> None:
    """Names in `scope` what the roots need of a level that is at most `level`."""
    wanted: list[Expr] = []
    seen: set[int] = set()
    stack = list(reversed(roots))
    while stack:
        expr = stack.pop()
        if id(expr) in seen or scope.find(expr) is not None:
            continue
        seen.add(id(expr))
        if text.level(expr) <= level:
            if expr.op in TRIVIAL or (expr.op == "index" and not expr.args[0].free_symbols):
                continue
            wanted.append(expr)
            continue
        if compares_places(expr):
            continue
        arguments = expr.args[:1] if expr.op in ("masked", "repeated", "halved") else expr.args
        stack.extend(arg for arg in reversed(arguments) if isinstance(arg, Expr))
    if not wanted:
        return
    printer = Printer(text, scope, wanted, lanes)
    for expr in wanted:
        name = printer.text(expr, scope)
        if not name.isidentifier():
            printer._named(expr, name, scope)
        scope.names[id(expr)] = scope.find(expr) or name


def hoist_replaced(text: Text, roots: list[Expr], stores: list[StoreStatement], scope: Scope) -> None:
    """Names what is a row's and will be written by its end: whoever needs it reads it before."""
    written = {store.buffer.text for store in stores}
    found = [load for load in loads_of(roots) if load.args[0].text in written and text.level(load) == 0]
    hoist(text, found, 0, scope, {})


@dataclass(frozen=True)
class StoreStatement:
    """A value that reaches memory."""

    buffer: Buffer
    place: Index
    value: Expr
    stage: int
    per_row: bool
    by: tuple[Expr, Index] | None = None
    """(a computed index, its stride in elements) that the place is counted from."""
    when: Expr | None = None
    """Whether it is written; None: it always is."""

    @property
    def where(self) -> list[Expr]:
        """What says where it goes and whether."""
        return [*([self.by[0]] if self.by else []), *([self.when] if self.when else [])]

    @property
    def roots(self) -> list[Expr]:
        return [self.value, *self.where]


def _unrounded(value: Expr, buffer: Buffer) -> Expr:
    """Without a rounding that the store does anyway."""
    own = buffer.dtype.is_floating_point and str(buffer.dtype).removeprefix("torch.")
    return value.args[0] if value.op == "round_to" and value.args[1] == own else value


def stores_of(text: Text) -> list[StoreStatement]:
    """What a kernel writes, a reduction's result among it."""
    kernel, stored = text.kernel, text.program.stored(text.kernel)
    found = []
    for member in kernel.members:
        for buffer, place in zip(member.definition.outs, member.places, strict=True):
            if buffer not in stored:
                continue
            reduced = bool(member.definition.reduced)
            value = text.fold(member) if reduced else text.value(member)
            value = _unrounded(value, buffer)
            per_row = reduced or member.per_row
            by = None if member.by is None else (text.resolve(member.by[0]), member.by[1])
            when = None if member.when is None else text.resolve(member.when)
            found.append(StoreStatement(buffer, text.placed(place), value, member.stage + per_row, per_row, by, when))
    return found


def folds_of(text: Text, stores: list[StoreStatement]) -> list[Member]:
    """The reductions that the stores need, in order."""
    needed: dict[int, Member] = {}
    stack = [root for store in stores for root in store.roots]
    while stack:
        for expr in walk([stack.pop()]):
            if expr.op == "fold" and id(expr.args[0]) not in needed:
                needed[id(expr.args[0])] = expr.args[0]
                stack.append(text.value(expr.args[0]))
    return [member for member in text.kernel.members if id(member) in needed]


def parts_of(text: Text) -> tuple[list[StoreStatement], list[Member], list[Expr]]:
    """(what a kernel stores, its reductions, the roots of both)."""
    stores = stores_of(text)
    folds = folds_of(text, stores)
    return stores, folds, [*(text.value(m) for m in folds), *(root for s in stores for root in s.roots)]


def windows_within(text: Text, roots: list[Expr], known: Container[int] = ()) -> dict[Window, Expr]:
    """What all lanes of those packs load together for which a condition holds, and that."""
    found: dict[Window, Expr] = {}
    plain, seen = set(text.windows(roots, known)), set[tuple[int, int]]()
    stack: list[tuple[Expr, Expr | None]] = [(root, None) for root in reversed(roots)]
    while stack and text.guards_packs:
        expr, guard = stack.pop()
        if (id(expr), id(guard)) in seen or id(expr) in known or expr.op in ("repeated", "halved"):
            continue
        seen.add((id(expr), id(guard)))
        if expr.op in ("load", "load_at") and guard is not None and (read := text.load_window(expr)):
            window = read[0]
            if window.width > 1 and window not in plain and (before := found.get(window)) is not guard:
                found[window] = guard if before is None else make("or", before, guard, type="bool")
            continue
        if expr.op == "masked" and text.level(expr.args[0]) < len(text.levels) - 1:
            condition, value, otherwise = expr.args
            branches = ((value, condition), (otherwise, make("not", condition, type="bool")))
            stack += [(one, by if guard is None else make("and", guard, by, type="bool")) for one, by in branches]
            stack.append((condition, guard))
        elif expr.op != "masked" or text.holding(expr.args[0]) is not None:
            stack += [(arg, guard) for arg in expr.args if isinstance(arg, Expr)]
    return found


def _others(text: Text, guarded: dict[Window, Expr]) -> dict[Window, Window]:
    """Of two packs of which one is wanted where the other is not, each by the other. One load brings what is wanted of them."""
    alike = lambda one, two: text.type_of(one) == text.type_of(two) and not (one.edged or two.edged)  # noqa: E731
    by_guard: dict[int, list[Window]] = {}
    for window, guard in guarded.items():
        by_guard.setdefault(id(guard), []).append(window)
    found: dict[Window, Window] = {}
    for windows in list(by_guard.values()):
        unless = by_guard.get(id(make("not", guarded[windows[0]], type="bool")), [])
        for one, two in zip(windows, unless, strict=False):
            found |= {one: two, two: one} if alike(one, two) else {}
    return found


def run_pass(
    text: Text,
    outer: Scope,
    folds: list[Member],
    stores: list[StoreStatement],
    array: bool = False,
    loaded: dict[Window, str] | None = None,
    hold: bool = False,
    kept: dict[int, str] | None = None,
    keep: list[tuple[Expr, str]] | None = None,
) -> Pass:
    """What happens for one pack: `folds` are accumulated, `stores` written. `loaded`: windows that registers hold already, and to
    `hold` as they were loaded until here. `kept`: what an earlier pass has left, by id; to `keep`: what this one leaves, and where.

    `array`: every lane has an accumulator of its own.
    """
    made = Pass()
    roots = [*(text.value(m) for m in folds), *(store.value for store in stores)]
    last = len(text.levels) - 1
    lanes: dict[Window, str] = {}
    pack = Scope(0, outer, names=dict(kept or {}))
    packs = _store_packs(text, stores)
    windows = text.windows([*roots, *(root for store in stores for root in store.where)], kept or ())
    needed = [window.by[0] for window in windows if window.by]
    needed += [root for store in packs for root in store.where]
    hoist(text, needed, last - 1, pack, {})
    for window in windows:
        if loaded and window in loaded:
            lanes[window] = loaded[window]
            if hold and text.width > 1:
                made.loads.append(f"hold_packed({loaded[window]});")
            continue
        lanes[window] = name = text.fresh(f"{window.buffer.name}_pack")
        printer = Printer(text, pack, needed, {})
        pack.line(f"{text.bound} {name} = {text.load(window, text.address(window, pack, printer))};")
    guarded = {
        window: guard for window, guard in windows_within(text, roots, kept or ()).items() if window not in lanes
    }
    others = _others(text, guarded)

    def address_of(window: Window, scope: Scope) -> str:
        return text.address(window, scope, Printer(text, scope, [window.by[0]] if window.by else [], {}))

    for window, guard in guarded.items():
        if window in lanes:
            continue
        lanes[window] = name = text.fresh(f"{window.buffer.name}_pack")
        condition, within = Printer(text, pack, [guard], {}).text(guard, pack), Scope(1, pack)
        if other := others.get(window):
            one, two = address_of(window, within), address_of(other, within)
            if not within.lines:  # what a place is computed of is loaded where it is wanted only
                lanes[other] = name
                pack.line(f"{text.bound} {name} = {text.load(window, f'{_bare(condition)} ? {one} : {two}')};")
                continue
            within = Scope(1, pack)
        within.line(f"{name} = {text.load(window, address_of(window, within))};")
        pack.lines += [f"{text.type_of(window)} {name};", f"if ({_bare(condition)}) {{", *within.lines, "}"]
    hoist(text, roots, last - 1, pack, lanes)
    made.shared = pack.lines
    inner = Scope(1 if text.width > 1 else 0, pack)
    alone = [store for store in stores if store not in packs]
    body = Printer(text, inner, [*roots, *(root for store in alone for root in store.where)], lanes)
    values = []
    for expr, where in keep or []:
        name = body.text(expr, inner)
        inner.line(f"{where} = {name if name.isidentifier() else body._named(expr, name, inner)};")
    for root in roots:
        name = body.text(root, inner)
        if not name.isidentifier() and len(roots) > 1:
            name = body._named(root, name, inner)
        values.append(name)
    for member, value in zip(folds, values, strict=False):
        name = text.fold_names[member]
        inner.line(text.step(member, f"{name}[{text.lane_name}]" if array else name, text.within(member, value)))
    for store, value in zip(stores, values[len(folds) :], strict=True):
        if store in packs:
            window, name, at = packs[store]
            inner.line(f"{text.pack_lane(window, name, text.index(at))} = {text.lane_stored(window, value)};")
        else:
            stored = f"{text.place(store, inner, body)} = {text.stored_text(store.buffer, value)};"
            inner.line(stored if store.when is None else f"if ({_bare(body.text(store.when, inner))}) {{ {stored} }}")
    made.lanes = inner.lines
    if text.width > 1:
        made.lanes = text.over(inner.lines, alone=len(packs) < len(stores))
    for window, name, when in dict.fromkeys((found[0], found[1], store.when) for store, found in packs.items()):
        made.loads.append(text.pack_declared(window, name))
        printer = Printer(text, pack, needed, {})
        stored = text.store(window, text.address(window, pack, printer), name)
        made.stores.append(stored if when is None else f"if ({_bare(printer.text(when, pack))}) {{ {stored} }}")
    return made


def run_held(
    text: Text, outer: Scope, folds: list[Member], stores: list[StoreStatement], numbers: dict[int, str], left: dict[int, str], few: str, **more: Any,
) -> list[str]:  # fmt: skip
    """A pass over a row that stays: with what earlier ones have `left`, where `few` of it holds, else with that computed again."""
    lines = run_pass(text, outer, folds, stores, hold=True, kept=numbers | left, **more).lines(0)
    if not (left and few):
        return lines
    again = run_pass(text, outer, folds, stores, hold=True, kept=numbers, **more).lines(0)
    return [f"if constexpr ({few}) {{", *indent(lines, 1), "} else {", *indent(again, 1), "}"]


def load_kept(
    text: Text, top: Scope, roots: list[Expr], end: str, slots: str, first: str = "team_member"
) -> tuple[dict[Window, str], dict[int, str]]:
    """Every window that is read, loaded before anything else: a row's bytes are in flight at once; and, by id, single numbers of a pack.
    `first`: a thread's first pack."""
    windows = [w for w in text.windows(roots) if w.by is None or text.level(w.by[0]) == 0]
    hoist(text, [w.by[0] for w in windows if w.by], 0, top, {})
    found = {}
    loads = Scope(top.indent + 2, top)
    printer = Printer(text, loads, [w.by[0] for w in windows if w.by], {})
    for window in windows:
        name = text.fresh(f"{window.buffer.name}_kept")
        top.line(f"{text.type_of(window)} {name}[{slots}];")
        loads.line(f"{name}[item] = {text.load(window, text.address(window, loads, printer))};")
        found[window] = f"{name}[item]"
    numbers = load_numbers(text, top, loads, roots, slots)
    if windows or numbers:
        top.lines += [*indent([
            "#pragma unroll", f"for (int item = 0; item < {slots}; ++item) {{",
            f"    const {text.wide} {text.counter} = {first} + item * team_step;", f"    if (is_row && {text.inside(str(text.counter), end)}) {{",
            *indent(text.pack_opening(), 2)], top.indent), *loads.lines, *indent(["    }", "}"], top.indent),
        ]  # fmt: skip
    return found, numbers


def load_numbers(text: Text, top: Scope, loads: Scope, roots: list[Expr], slots: str) -> dict[int, str]:
    """Single numbers of a pack whose places need nothing that is loaded, put where `loads` puts windows: their texts by id."""
    found = {}
    for load in [
        e for e in text.always(roots) if e.op == "load" and text.level(e) == 1 and text.load_window(e) is None
    ]:
        buffer, place = load.args
        name = text.fresh(f"{buffer.name}_ahead")
        top.line(f"{text.element(buffer.dtype)} {name}[{slots}];")
        loads.line(f"{name}[item] = {text.pointer(buffer)}[{text.index(place)}];")
        found[id(load)] = text.loaded_text(buffer, f"{name}[item]")
    return found


def _store_packs(text: Text, stores: list[StoreStatement]) -> dict[StoreStatement, tuple[Window, str, Index]]:
    """(window, its name, the lane's element) of each store whose window all lanes of all stores fill together."""
    found: dict[tuple[Window, Expr | None], list[tuple[StoreStatement, Index]]] = {}
    for store in stores:
        lanes_differ = text.width > 1 and any(text.level(root) == len(text.levels) - 1 for root in store.where)
        place = None if lanes_differ else text.window(store.buffer, store.place, store.by)
        if place is not None:
            found.setdefault((place[0], store.when), []).append((store, place[1]))
    packs: dict[StoreStatement, tuple[Window, str, Index]] = {}
    for (window, _), members in found.items():
        filled = {int(at.subs(text.lane, k)) for _, at in members for k in range(text.width)}
        if filled != set(range(window.width)):
            continue
        name = text.fresh(f"{window.buffer.name}_pack")
        packs |= {store: (window, name, at) for store, at in members}
    return packs
