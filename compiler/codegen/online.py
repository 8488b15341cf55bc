"""Sums below a maximum in the pass that finds it: where that becomes larger, what was added so far is scaled down to it.

A sum is taken so if it is one of terms `row * exp(element - maximum) * other`, with what is the row's taken out of it: the log of a sum of
exponentials, softmax's denominator, an entropy, weighted means. So rows that are read again in each pass are read once for all of these.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace

from compiler.codegen.levels import StoreStatement, hoist, load_kept, run_pass
from compiler.codegen.printer import Printer
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr, constant, make, walk
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, _bare

AHEAD = 4
"""Packs that a thread has loaded before it looks at the first: the maximum is brought up to date once for all of them."""
MOST_TERMS = 6

Term = tuple[tuple[Expr, ...], tuple[Expr, ...]]
"""Factors that are the row's, factors that are an element's."""


@dataclass
class OnlineGroup:
    """A maximum, the sums below it, and what later reductions are of these."""

    maximum: Member
    sums: list[Member] = field(default_factory=list)
    made: list[tuple[Member, Expr]] = field(default_factory=list)
    """A reduction of the kernel, its value by the sums."""


def online_groups(text: Text, folds: list[Member]) -> list[OnlineGroup]:
    groups: dict[Member, OnlineGroup] = {}
    for member in folds:
        if member.definition.kind != "sum" or member.definition.type != "float":
            continue
        terms = _terms(text, text.value(member))
        tops = {top for _, factors in terms for top in [_top(text, factors)]}
        top = tops.pop() if len(tops) == 1 else None
        if top is None or len(terms) > MOST_TERMS:
            continue
        group, value = groups.setdefault(top, OnlineGroup(top)), None
        for row, factors in terms:
            sum = text.fold(replace(member, value=_product(factors)))
            if sum.args[0] not in group.sums:
                group.sums.append(sum.args[0])
            term = _product((*row, sum))
            value = term if value is None else make("add", value, term, type="float")
        if value is not None and value is not text.fold(member):
            group.made.append((member, value))
    return list(groups.values())


def _product(factors: tuple[Expr, ...]) -> Expr:
    whole = factors[0]
    for factor in factors[1:]:
        whole = make("mul", whole, factor, type="float")
    return whole


def _terms(text: Text, expr: Expr) -> list[Term]:
    """The expression as a sum of products."""
    minus = constant(-1, "float")
    if text.level(expr) == 0:
        return [((expr,), ())]
    if _below_maximum(text, expr) is not None:
        return [
            ((), (expr,))
        ]  # small where both are large: apart, p log p of logits around a thousand is off in its fourth digit
    if expr.op in ("add", "sub"):
        one, other = (_terms(text, arg) for arg in expr.args)
        sign = (minus,) if expr.op == "sub" else ()
        return [*one, *(((*sign, *row), factors) for row, factors in other)]
    if expr.op == "neg":
        return [((minus, *row), factors) for row, factors in _terms(text, expr.args[0])]
    if expr.op == "mul":
        one, other = (_terms(text, arg) for arg in expr.args)
        if len(one) * len(other) <= MOST_TERMS:
            return [((*a, *b), (*f, *g)) for a, f in one for b, g in other]
    if expr.op in ("div", "divided"):
        number, by = (
            expr.args if expr.op == "div" else (one.args[0] for one in expr.args[:2])
        )  # both sides are times a scale there
        if text.level(by) == 0:
            once = make("div", constant(1, "float"), by, type="float")
            return [((*row, once), factors) for row, factors in _terms(text, number)]
    if expr.op == "exp" and (found := _power(text, expr)) is not None:
        return [found]
    return [((), (expr,))]


def _power(text: Text, expr: Expr) -> Term | None:
    """exp(element - maximum - log(sum)) as exp(element - maximum) and 1 / sum."""
    found = _below_maximum(text, expr.args[0])
    if found is None:
        return None
    element, top, others = found
    if any(plus or one.op != "log" or one.args[0].op != "fold" for one, plus in others):
        return None
    core = make("exp", make("sub", element, top, type="float"), type="float")
    return tuple(make("div", constant(1, "float"), one.args[0], type="float") for one, _ in others), (core,)


def _below_maximum(text: Text, expr: Expr) -> tuple[Expr, Expr, list[tuple[Expr, bool]]] | None:
    """(element, its maximum, what of the row's is added besides, or taken off) of an element less its maximum."""
    rest, signed = expr, []
    while rest.op in ("add", "sub") and text.level(rest.args[1]) == 0:
        signed += list(_signed(rest.args[1], rest.op == "add"))
        rest = rest.args[0]
        tops = [one for one, plus in signed if not plus and _is_maximum(text, one, rest)]
        if tops:
            return rest, tops[0], [(one, plus) for one, plus in signed if one is not tops[0]]
    return None


def _signed(expr: Expr, plus: bool) -> Iterator[tuple[Expr, bool]]:
    if expr.op in ("add", "sub"):
        yield from _signed(expr.args[0], plus)
        yield from _signed(expr.args[1], plus == (expr.op == "add"))
    else:
        yield expr, plus


def _is_maximum(text: Text, expr: Expr, of: Expr) -> bool:
    return expr.op == "fold" and expr.args[0].definition.kind == "max" and text.value(expr.args[0]) is of


def _top(text: Text, factors: tuple[Expr, ...]) -> Member | None:
    """The maximum of a product of exp(element - maximum) and what can be computed before it is known."""
    powers = [f for f in factors if f.op == "exp" and f.args[0].op == "sub" and _is_maximum(text, f.args[0].args[1], f.args[0].args[0])]  # fmt: skip
    if len(powers) != 1:
        return None
    top = powers[0].args[0].args[1].args[0]
    rest = [factor for factor in factors if factor is not powers[0]]
    early = all(one.args[0].stage < top.stage for one in walk([*rest, text.value(top)]) if one.op == "fold")
    return top if early else None


def print_pass(
    text: Text, top: Scope, groups: list[OnlineGroup], folds: list[Member], stores: list[StoreStatement], end: str
) -> None:  # fmt: skip
    """One pass over a row for the maxima and sums of `groups`, the other reductions `folds` and `stores`."""
    wide, pack, first = text.wide, text.counter, text.fresh("first_ahead")
    top.line(f"for ({wide} {first} = is_row ? team_member : {end}; {first} < {end}; {first} += {AHEAD} * team_step) {{")
    inside = Scope(2, top)
    names = {group.maximum: text.fold_names[group.maximum] for group in groups}
    sums = [one for group in groups for one in group.sums]
    roots = [*(text.value(m) for m in [*folds, *names, *sums]), *(root for store in stores for root in store.roots)]
    loaded, numbers = load_kept(text, inside, roots, end, str(AHEAD), first)

    def each(folds: list[Member], stores: list[StoreStatement], hold: bool = False) -> None:
        made = run_pass(text, inside, folds, stores, loaded=loaded, hold=hold, kept=numbers)
        inside.lines += [
            "        #pragma unroll", f"        for (int item = 0; item < {AHEAD}; ++item) {{",
            f"            const {wide} {pack} = {first} + item * team_step;", f"            if ({pack} < {end}) {{",
            *("                " + line for line in text.pack_opening()), *made.lines(4), "            }", "        }",
        ]  # fmt: skip

    before = {one: text.fresh(f"{name}_before") for one, name in names.items()}
    for one, name in names.items():
        inside.line(f"const float {before[one]} = {name};")
    each([*folds, *names], [], hold=True)
    for group in groups:
        name = names[group.maximum]
        shift, scale = (text.fresh(f"{name}_{word}") for word in ("shift", "scale"))
        text.fold_names[group.maximum] = shift
        inside.line(f"const float {shift} = shift_below({name}), {scale} = expf({before[group.maximum]} - {shift});")
        for one in group.sums:
            inside.line(f"{text.fold_names[one]} *= {scale};")
    text.brief = (
        not stores and bool(loaded) and all(window.buffer.dtype.itemsize < 4 for window in loaded)
    )  # as what is read is rounded
    each(sums, stores)
    text.brief = False
    text.fold_names |= names
    top.lines += [*inside.lines, "    }"]


def print_sums(
    text: Text, top: Scope, group: OnlineGroup, loaded: dict[Window, str], kept: dict[int, str], keep: list[tuple[Expr, str]]
) -> list[str]:  # fmt: skip
    """What happens for a pack of a row that stays, once a thread has its largest: sums below the warp's."""
    name = text.fold_names[group.maximum]
    shift = text.fresh(f"{name}_shift")
    top.line(f"{name} = largest_of_warp<Team>({name});")
    top.line(f"const float {shift} = shift_below({name});")
    text.fold_names[group.maximum] = shift
    made = run_pass(text, top, group.sums, [], loaded=loaded, hold=True, kept=kept, keep=keep)
    text.fold_names[group.maximum] = name
    return [*text.pack_opening(), *made.lines(0)]


def print_results(text: Text, top: Scope, group: OnlineGroup, warps: bool) -> str:
    """What a team has summed, and its maximum, in one exchange. `warps`: threads have summed below their warp's maximum, not their own. The name of
    what else is below that, of which a thread has as much as `share_below` says."""
    name = text.fold_names[group.maximum]
    names = [text.fold_names[one] for one in group.sums]
    own, sums = text.fresh(f"{name}_own"), text.fresh(f"{name}_sums")
    top.line(f"const float {own} = {name if warps else f'largest_of_warp<Team>({name})'};")
    scale = "" if warps else f" * expf({name} - shift_below({own}))"
    top.line(f"float {sums}[] = {{{', '.join(one + scale for one in names)}}};")
    site = sum(line.count("reduce_below<") for line in top.lines)
    top.line(f"{name} = reduce_below<Threads, Team, Split, {site}>({own}, {sums});")
    for at, one in enumerate(names):
        top.line(f"{one} = {name} == -INFINITY ? NAN : {sums}[{at}];")
    for member, value in group.made:
        hoist(text, [value], 0, top, {})
        made = Printer(text, top, [value], {}).text(value, top)
        if not made.isidentifier():
            made, given = text.fresh(f"{member.definition.origin}_{member.definition.kind}"), made
            top.line(f"const float {made} = {_bare(given)};")
        text.fold_names[member] = made
    return own


def print_shares(
    text: Text, top: Scope, group: OnlineGroup, own: str, held: dict[Expr, str], roots: list[Expr]
) -> dict[int, str]:  # fmt: skip
    """What is held below the warp's maximum as it is below the team's, by id, and its products with what is the row's."""
    if not held:
        return {}
    share = text.fresh(f"{own}_share")
    top.line(f"const float {share} = share_below<Team>({own}, {text.fold_names[group.maximum]});")
    made = {id(expr): f"({name} * {share})" for expr, name in held.items()}
    scaled: dict[Expr, str] = {}
    for product in walk(roots):
        for expr, by in (product.args, product.args[::-1]) if product.op == "mul" else ():
            known = all(one.args[0] in text.fold_names for one in walk([by]) if one.op == "fold")
            if expr not in held or text.level(by) > 0 or not known:
                continue
            if by not in scaled:
                hoist(text, [by], 0, top, {})
                scaled[by] = text.fresh(share)
                top.line(f"const float {scaled[by]} = {share} * {Printer(text, top, [by], {}).text(by, top)};")
            made[id(product)] = f"({held[expr]} * {scaled[by]})"
    return made


def groups_that_meet_once(text: Text, folds: list[Member], busy: Container[int]) -> list[OnlineGroup]:
    """Of rows that stay: maxima whose sums are taken below a warp's own one, so that a team meets once for both. `busy`: stages in which elements are
    written."""
    groups = online_groups(text, folds)
    merged = {one for group in groups for one in (*group.sums, *(made for made, _ in group.made))}
    alone = [
        g
        for g in groups
        if g.maximum.stage + 1 not in busy and all(m in merged for m in folds if m.stage == g.maximum.stage + 1)
    ]
    return alone if len(alone) == len(groups) else []


def below_maximum(text: Text, group: OnlineGroup, held: list[Expr]) -> list[Expr]:
    """Of what is held, that which is times exp(element - maximum), and of the maximum's nothing else."""
    found = []
    for expr in held:
        terms = _terms(text, expr)
        if len(terms) == 1 and not terms[0][0] and _top(text, terms[0][1]) is group.maximum:
            found.append(expr)
    return found
