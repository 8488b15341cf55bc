"""What a sample without replacement must keep: its rows, its sizes, no position twice, and all subsets equally likely."""

import math

import torch

from kernels.chance import FALSE_ALARM, off_mean, too_uneven

CALLS = 15
"""Calls of different seeds that are judged together: at 4,096 rows some 60,000 samples."""
CHUNK_EDGES = 1 << 24
"""Neighbours that are sorted at once."""


def violated(inputs, outputs, sizes) -> str:
    rowptr, col, frontier, picked = inputs["rowptr"], inputs["col"], inputs["frontier"].long(), outputs["picked"].long()
    nodes, fanout = sizes["nodes"], sizes["fanout"]
    first = rowptr[frontier.clamp_min(0)]
    degree = torch.where(frontier >= 0, rowptr[frontier.clamp_min(0) + 1] - first, 0)
    wanted = torch.arange(fanout, device=picked.device) < degree.clamp_max(fanout)[:, None]
    if bool((wanted & ((picked < 0) | (picked >= nodes))).any()):
        row = int((wanted & ((picked < 0) | (picked >= nodes))).any(dim=1).nonzero()[0])
        return f"row {row} of degree {int(degree[row])} holds {picked[row].tolist()}, should be {int(wanted[row].sum())} ids"
    if bool((~wanted & (picked != -1)).any()):
        row = int((~wanted & (picked != -1)).any(dim=1).nonzero()[0])
        return f"row {row} of degree {int(degree[row])} holds {picked[row].tolist()}: behind its picks must be -1"
    upto, at = degree.cumsum(0), 0
    while at < len(frontier):
        before = int(upto[at - 1]) if at else 0
        end = max(at + 1, int(torch.searchsorted(upto, before + CHUNK_EDGES)))
        if said := _foreign(col, first[at:end], degree[at:end], picked[at:end], at, nodes):
            return said
        at = end
    return ""


def _foreign(col, first, degree, picked, begins, nodes) -> str:
    """Whether a row picked what it has not, or more often than it has: each (row, id) as one number."""
    rows = torch.arange(len(degree), device=col.device)
    owner = torch.repeat_interleave(rows, degree)
    within = torch.arange(len(owner), device=col.device) - (degree.cumsum(0) - degree)[owner]
    have, times = torch.unique(owner * nodes + col[first[owner] + within], return_counts=True)
    keys = (rows[:, None] * nodes + picked)[picked >= 0]
    if not len(keys):
        return ""
    got, often = torch.unique(keys, return_counts=True)
    at = torch.searchsorted(have, got).clamp_max(len(have) - 1)
    foreign = have[at] != got
    if bool(foreign.any()):
        key = int(got[foreign][0])
        return f"row {begins + key // nodes} picked {key % nodes}, which is none of its neighbours"
    if bool((often > times[at]).any()):
        key = int(got[often > times[at]][0])
        return f"row {begins + key // nodes} picked a position of neighbour {key % nodes} twice"
    return ""


def _degrees(fanout: int) -> tuple[int, ...]:
    """One more than the fanout, where Floyd's method shows its bounds; two more, where every subset can be counted."""
    return fanout + 1, fanout + 2, 4 * fanout


def several(inputs, sizes) -> list:
    """The calls of CALLS seeds, half of them consecutive, and the first again.

    Node v has degree `_degrees()[v % 3]` and the neighbours v, v + 1, ..., so that a picked id says its position. Rows
    come in a random order and, where there are more rows than nodes, repeatedly.
    """
    nodes, rows, degrees = sizes["nodes"], sizes["rows"], _degrees(sizes["fanout"])
    device = inputs["col"].device
    degree = torch.tensor(degrees, device=device).repeat(nodes // 3 + 1)[:nodes]
    rowptr = torch.zeros_like(inputs["rowptr"])
    rowptr[1:] = degree.cumsum(0)
    if rows < 1000 or nodes < degrees[-1] or int(rowptr[-1]) > sizes["edges"]:
        return []
    owner = torch.repeat_interleave(torch.arange(nodes, device=device), degree)
    col = torch.zeros_like(inputs["col"])
    col[: len(owner)] = ((owner + torch.arange(len(owner), device=device) - rowptr[owner]) % nodes).to(col.dtype)
    frontier = torch.cat([torch.randperm(nodes, device=device) for _ in range(-(-rows // nodes))])[:rows]
    base = int(inputs["seed"]) % (1 << 62)
    seeds = [base + i for i in range(CALLS // 2)]
    seeds += torch.randint(1 << 62, (CALLS - len(seeds),)).tolist()
    given = {"rowptr": rowptr, "col": col, "frontier": frontier.to(inputs["frontier"].dtype)}
    return [given | {"seed": torch.full_like(inputs["seed"], seed)} for seed in [*seeds, seeds[0]]]


def violated_together(calls, sizes) -> str:
    first, last = calls[0], calls[-1]
    if not torch.equal(first[1]["picked"], last[1]["picked"]):
        return "the same seed gave two samples of the same rows"
    frontier, fanout = first[0]["frontier"].long(), sizes["fanout"]
    picked = torch.stack([outputs["picked"].long() for _, outputs in calls[:-1]])
    for number, degree in enumerate(_degrees(fanout)):
        mine = frontier % 3 == number
        positions = (picked[:, mine] - frontier[mine][:, None]) % sizes["nodes"]
        taken = torch.zeros((*positions.shape[:2], degree), device=picked.device).scatter_(2, positions, 1.0)
        if said := _uneven(taken, fanout) or _dependent(taken, fanout):
            return f"rows of degree {degree} at fanout {fanout}: {said}"
    return ""


ALARM = FALSE_ALARM / (3 * (4 + CALLS))
"""Probability of a false alarm of each single test: there are 3 degrees, 4 tests of every kind and one for each
distance of two calls."""


def _uneven(taken, fanout) -> str:
    """Tests of one row's sample. taken [calls, rows, degree]: 1 where that position was picked."""
    calls, rows, degree = taken.shape
    n, p = calls * rows, fanout / degree
    counts = taken.sum(dim=(0, 1))
    if said := too_uneven(counts, n * p, n * p * (1 - p) * degree / (degree - 1), ALARM):
        return f"positions are not equally likely: {said}"
    if degree == fanout + 2:  # the two that were left out say the whole subset
        left = (1 - taken).reshape(n, degree).topk(2, dim=1).indices.sort(dim=1).values
        pairs = torch.bincount(left[:, 0] * degree + left[:, 1], minlength=degree * degree)
        upper = torch.ones(degree, degree, device=taken.device).triu(1).flatten() > 0
        share = n / int(upper.sum())
        if said := too_uneven(pairs[upper], share, share, ALARM):
            return f"subsets of positions are not equally likely: {said}"
    adjacent = (taken * taken.roll(1, dims=2)).sum(dim=2)
    spread = max(float(adjacent.double().var()), 1e-9)
    if said := off_mean(adjacent, fanout * (fanout - 1) / (degree - 1), spread, ALARM):
        return f"neighbouring positions are not picked as often as others: pairs a row {said}"
    return ""


BUCKETS = 8
NEAR, LAGS, PARTS = 32, 64, 16
"""Distances of two picks of a row, in a cache line or two, and of two rows of a call, that are looked at each by itself; rows are
compared by how many picks lie in each of so many parts of them."""
ROWS_LOOKED_AT, FEWEST_ROWS, ROWS_PAIRED = 20_000, 200, 4000
"""Rows of a call that are looked at, at most and at least (the tests use the normal approximation); rows of all calls
whose pairs of picks are all compared."""


def unlikely(calls, sizes) -> str:
    """Where in their rows timed calls picked: rows of every degree count, each by what a sample of its degree would show."""
    fanout = sizes["fanout"]
    looked_at = [_positions(inputs, outputs["picked"], fanout) for inputs, outputs in calls]
    if not looked_at or sum(len(degree) for _, degree, _ in looked_at) < FEWEST_ROWS:
        return ""
    degree = torch.cat([one for _, one, _ in looked_at]).double()
    places = torch.cat([one for _, _, one in looked_at]).double()
    alarm = FALSE_ALARM / (BUCKETS + NEAR + LAGS + 6)
    for number in range(BUCKETS + 2):  # the first and the last position have one of their own
        first = torch.ceil(number * degree / BUCKETS) if number < BUCKETS else (degree - 1) * (number - BUCKETS)
        end = torch.ceil((number + 1) * degree / BUCKETS) if number < BUCKETS else first + 1
        share = (end - first) / degree
        taken = ((places >= first[:, None]) & (places < end[:, None])).sum(dim=1)
        variance = fanout * share * (1 - share) * (degree - fanout) / (degree - 1)
        if said := _off(taken - fanout * share, variance.sum(), alarm):
            where = (
                f"part {number + 1} of {BUCKETS}"
                if number < BUCKETS
                else ("first place", "last place")[number - BUCKETS]
            )
            return f"positions are not equally likely: picks in the {where} of their rows {said}"
    some = torch.randperm(len(places), device=places.device)[:ROWS_PAIRED]
    few, upto = places[some], degree[some]
    apart = (few[:, None, :] - few[:, :, None]).remainder(upto[:, None, None])
    for distance in range(1, NEAR + 1):
        long = upto > 2 * distance  # at half a row's length both ways round are the same pair
        usual = fanout * (fanout - 1) / (upto[long] - 1)
        pairs = (apart[long] == distance).sum(dim=(1, 2)) - usual
        if said := _off(pairs, torch.maximum(pairs.square().sum(), usual.sum()), alarm):
            return f"positions {distance} apart are not picked together as often as others: pairs a row {said}"
    spread = (degree - fanout) * (degree + 1) / (12 * fanout)
    middle = (places.mean(dim=1) - (degree - 1) / 2) / spread.sqrt()
    strays = middle.square() - 1
    if said := _off(strays, strays.square().sum().clamp_min(2.0 * len(strays)), alarm):
        return f"picks of a row are not independent: how far their mean position strays {said}"
    own = [_by_part(places, degree, fanout) for _, degree, places in looked_at]
    by_place = [
        one.new_zeros(LAGS + 2 + int(rows[-1]), PARTS).index_copy_(0, rows, one)[:ROWS_PAIRED]
        for (rows, _, _), one in zip(looked_at, own, strict=True)
        if len(rows)
    ]  # 0 where a row is not looked at
    for lag in range(1, LAGS + 1):
        both = torch.cat([(one[lag:] * one[:-lag]).sum(dim=1) for one in by_place])
        if said := _off(both, both.square().sum(), alarm):
            return f"rows are not independent: in how it picks a row is like the one {lag} places behind it {said}"
    by_row = {}
    for call, (rows, _, _) in enumerate(looked_at):
        for other in range(call):
            shared = torch.isin(rows, looked_at[other][0]), torch.isin(looked_at[other][0], rows)
            by_row[other, call] = (own[call][shared[0]] * own[other][shared[1]]).sum(dim=1)
    products = torch.cat([*by_row.values(), degree.new_empty(0)])
    if len(products) >= FEWEST_ROWS and (said := _off(products, products.square().sum(), alarm)):
        return f"calls are not independent: in how it picks a row is like the same row of another call {said}"
    return ""


def _by_part(places, degree, fanout):
    """How many picks more than chance puts there lie in each of PARTS equal parts of their row. [rows, PARTS], fp64, 0 on average,
    whatever the row's degree."""
    degree = degree.double()[:, None]
    ends = torch.ceil(torch.arange(PARTS + 1, device=degree.device) * degree / PARTS)
    part = (places.double()[:, None, :] >= ends[:, 1:, None]).sum(dim=1)
    taken = torch.zeros(len(places), PARTS, dtype=torch.float64, device=degree.device)
    taken.scatter_add_(1, part, torch.ones_like(part, dtype=torch.float64))
    return taken - fanout * ends.diff(dim=1) / degree


def _positions(inputs, picked, fanout):
    """(which rows of the call, their degrees, the positions that each picked [rows, fanout]) of some of its rows: of those that
    have more neighbours than are picked, and none of them twice."""
    rowptr, col, frontier = inputs["rowptr"], inputs["col"], inputs["frontier"].long()
    first = rowptr[frontier.clamp_min(0)]
    degree = torch.where(frontier >= 0, rowptr[frontier.clamp_min(0) + 1] - first, 0)
    rows = ((degree > fanout) & (degree < CHUNK_EDGES // ROWS_LOOKED_AT)).nonzero().flatten()[:ROWS_LOOKED_AT]
    first, degree, ids = first[rows], degree[rows], picked[rows].long()
    if not len(rows):
        return rows, degree, ids
    owner = torch.repeat_interleave(torch.arange(len(rows), device=col.device), degree)
    within = torch.arange(len(owner), device=col.device) - (degree.cumsum(0) - degree)[owner]
    nodes = len(rowptr) - 1
    keys, order = (owner * nodes + col[first[owner] + within].long()).sort()
    twice = torch.zeros(len(rows), dtype=torch.bool, device=col.device)
    twice[owner[order[1:]][keys[1:] == keys[:-1]]] = True
    at = torch.searchsorted(keys, torch.arange(len(rows), device=col.device)[:, None] * nodes + ids)
    places = within[order][at.clamp_max(len(keys) - 1)]
    return rows[~twice], degree[~twice], places[~twice]


def _off(apart, variance, alarm) -> str:
    """Whether differences, 0 on average, add up to more than chance shows. `variance` of their sum."""
    if float(variance) <= 0:
        return ""
    z = float(apart.double().sum() / variance.sqrt())
    return "" if math.erfc(abs(z) / math.sqrt(2)) >= alarm else f"({z:+.0f} standard errors)"


def _dependent(taken, fanout) -> str:
    """Tests of two samples: how many positions they share is hypergeometric where they are independent."""
    calls, rows, degree = taken.shape
    mean = fanout * fanout / degree
    variance = mean * (1 - fanout / degree) * (degree - fanout) / (degree - 1)
    for what, other in (("the next row", taken[:, 1::2]), ("a far row", taken[:, 1::2].roll(rows // 4, dims=1))):
        shared = (taken[:, ::2][:, : other.shape[1]] * other).sum(dim=2)
        if said := off_mean(shared, mean, variance, ALARM):
            return f"rows are not independent: with {what} of its degree a row shares {said} positions"
    for apart in range(1, calls):
        shared = (taken[apart:] * taken[:-apart]).sum(dim=2)
        if said := off_mean(shared, mean, variance, ALARM):
            return f"calls are not independent: a row shares with itself {apart} seeds later {said} positions"
    return ""
