"""What a sample without replacement must keep: its rows, its sizes, no position twice, and all subsets equally likely."""

import itertools
import math
import random

import torch

from kernels.chance import FALSE_ALARM, off_mean, too_uneven

CALLS = 15
"""Calls of different seeds that are judged together: at 4,096 rows some 60,000 samples."""
ONE_BIT, LOW_BITS = 5, 24
"""Seeds among them that differ from the first in one bit, from the LOW_BITS-th on."""
SMALL_SEEDS = 1000
POPULAR_SEEDS = (0, 1, 7, 42, 100, 123, 1000, 1234, 1337, 2024, 2025, 2026, 3407, 12345, 2**31 - 1, 2**32 - 1)
PROJECTED = 4
"""Random projections of a row's picks, and calls, by which rows are compared at all distances."""
HUB_CALLS, HUBS, HUB_ROWS = 2, 4, 128
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
    come in a random order, some nodes twice; at last calls of hubs. Some seeds differ from the first in one bit, be it a high one.
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
    once = torch.randperm(nodes, device=device)[: rows - rows // 4]
    frontier = torch.cat([once] * -(-rows // len(once)))[:rows]
    frontier = frontier[torch.randperm(rows, device=device)]
    base = (int(inputs["seed"]) % (1 << 62)) >> random.choice((0, random.randrange(62)))
    seeds = [base + i for i in range(CALLS // 2)]
    seeds += [base ^ (1 << bit) for bit in (torch.randperm(62 - LOW_BITS)[:ONE_BIT] + LOW_BITS).tolist()]
    for people_write in (POPULAR_SEEDS, POPULAR_SEEDS, range(SMALL_SEEDS)):
        seeds.append(random.choice([seed for seed in people_write if seed not in seeds]))
    given = {"rowptr": rowptr, "col": col, "frontier": frontier.to(inputs["frontier"].dtype)}
    arranged = [given | {"seed": torch.full_like(inputs["seed"], seed)} for seed in [*seeds, seeds[0]]]
    return [*arranged, *_calls_of_hubs(inputs, sizes)]


def _calls_of_hubs(inputs, sizes) -> list:
    """HUB_CALLS calls of rows that are as long as there are nodes, of which a random graph's frontier has few: HUB_ROWS of HUBS nodes, in any
    places, and padding elsewhere."""
    nodes, rows, device = sizes["nodes"], sizes["rows"], inputs["col"].device
    most = min(nodes, sizes["edges"] // HUBS)
    if most < 2 * LONG[-1] * sizes["fanout"]:
        return []
    made = []
    for _ in range(HUB_CALLS):
        degree, hubs = random.randrange(most // 2, most + 1), torch.randperm(nodes, device=device)[:HUBS]
        rowptr, col = torch.zeros_like(inputs["rowptr"]), torch.zeros_like(inputs["col"])
        rowptr[1:].index_fill_(0, hubs, degree)
        for at in range(HUBS):
            ids = torch.randperm(nodes, device=device)[:degree]
            col[at * degree : (at + 1) * degree] = ids.to(col.dtype)
        frontier = torch.full_like(inputs["frontier"], -1)
        places = torch.randperm(rows, device=device)[:HUB_ROWS]
        frontier[places] = hubs.repeat(-(-HUB_ROWS // HUBS))[: len(places)].to(frontier.dtype)
        seed = torch.full_like(inputs["seed"], random.getrandbits(62))
        made.append({"rowptr": rowptr.cumsum(0), "col": col, "frontier": frontier, "seed": seed})
    return made


def violated_together(calls, sizes) -> str:
    calls, hubs = calls[: CALLS + 1], calls[CALLS + 1 :]
    if said := unlikely([evidence(inputs, outputs, sizes, 0) for inputs, outputs in hubs], sizes):
        return f"of rows as long as there are nodes {said}"
    first, last = calls[0], calls[-1]
    if not torch.equal(first[1]["picked"], last[1]["picked"]):
        return "the same seed gave two samples of the same rows"
    frontier, fanout = first[0]["frontier"].long(), sizes["fanout"]
    picked = torch.stack([outputs["picked"].long() for _, outputs in calls[:-1]])
    order = frontier.argsort(stable=True)
    twice = (frontier[order[1:]] == frontier[order[:-1]]).nonzero().flatten()
    one, other = order[twice], order[twice + 1]
    for number, degree in enumerate(_degrees(fanout)):
        mine = frontier % 3 == number
        positions = (picked - frontier[:, None]) % sizes["nodes"]
        positions.clamp_(max=degree - 1)  # of the other rows
        taken = torch.zeros((*positions.shape[:2], degree), device=picked.device).scatter_(2, positions, 1.0)
        same, (mean, variance) = mine[one], _shared(fanout, degree)
        both = (taken[:, one[same]] * taken[:, other[same]]).sum(dim=2)
        if said := _uneven(taken[:, mine], fanout) or _dependent(taken[:, mine], fanout):
            return f"rows of degree {degree} at fanout {fanout}: {said}"
        if both.numel() and (said := off_mean(both, mean, variance, ALARM)):
            return f"rows of degree {degree} at fanout {fanout}: rows of one node share {said} positions"
        own = torch.randint(2, (degree, PROJECTED), device=taken.device).mul_(2).sub_(1).float()
        own = ((taken - fanout / degree) @ (own - own.mean(dim=0))).mul_(mine[:, None]).double()
        if said := _alike_at_a_distance(own[:PROJECTED], ALARM) or _alike_at_a_distance(
            own[: CALLS // 2], ALARM, next_call=True
        ):
            return f"rows of degree {degree} at fanout {fanout} are not independent: a row is like {said}"
    lengths = torch.tensor(_degrees(fanout), device=picked.device)[frontier % 3]
    places, row = (picked - frontier[:, None]) % sizes["nodes"], torch.arange(len(frontier), device=picked.device)
    return _follow([(row, lengths, one) for one in places], ALARM)


ALARM = FALSE_ALARM / (3 * (10 + CALLS))
"""Probability of a false alarm of each single test: there are 3 degrees, 9 tests of every kind, one for each distance of two calls, and one of
whether rows follow from others."""


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
TRIPLES = 6 << 20
"""Triples of picks, at most, that are looked at for equal distances: two random numbers a row make a start and a step, and no two of such picks
show it."""
NEAR, PARTS = 32, 16
"""Distances of two picks of a row, in a cache line or two, that are looked at each by itself; rows are compared by how many picks lie
in each of so many parts of them."""
LONG, SHARING = (0, 8, 32), (1, 2, 4, 8, 16)
"""Rows of so many times the fanout's neighbours, and more, are looked at by themselves, too; and from so many up to the next by what two of
them share."""
BEHIND, BEHIND_OF_NEXT, BLOCK, FEWEST_PAIRS = 64, 8, 128, 300
"""Rows of the same call, and on either side of its own place in the next one, of each of which it is looked whether how it is picked depends on
a row; rows in turn from which a dependence is learnt and of which it is tested; pairs of rows without which nothing is said."""
NEAREST, NEAREST_OF_NEXT = 8, 1
"""Those that are looked at place by place, too."""
PAIRED, COMPARED, SUSPECT, STEPS = 20_000, 4096, 5.0, (0.01, 0.02, 0.05, 0.1)
"""Pairs of rows so far apart, those that are compared with the pair so far behind them, standard errors from which on the exact chance is bounded, and by which
exponents."""
RARE = (1.0, 1e-2, 1e-4)
"""Pairs of equal samples that chance makes of rows that have something in common, up to which they are counted."""
PAIRS_SHARED, PAIRS_AT_ONCE = 30_000, 4096
"""Pairs of rows whose places are compared, for each of these lengths and whatever they have in common; those compared at once stay in a cache."""
FEWEST_LONG = 100
ROWS_LOOKED_AT, FEWEST_ROWS, ROWS_PAIRED = 20_000, 200, 4000
"""Rows of a call that are looked at, at most and at least (the tests use the normal approximation); rows of all calls
whose pairs of picks are all compared."""


def evidence(inputs, outputs, sizes, secret) -> tuple:
    """(which rows of the call, their degrees, the places that each picked, their nodes) of some of its rows; `secret` says which.

    Of a long call its first rows and as many from a drawn place on, so that no distance of two rows is beyond being looked at.
    """
    rows, chance = len(inputs["frontier"]), random.Random(secret)
    parts = chance.randrange(2, 9)
    second = rows * chance.randrange(1, parts) // parts
    return _positions(inputs, outputs["picked"], sizes["fanout"], second)


def unlikely(seen, sizes) -> str:
    """Where in their rows timed calls picked: rows of every degree count, each by what a sample of its degree would show."""
    fanout = sizes["fanout"]
    if not seen or sum(len(one[0]) for one in seen) < FEWEST_ROWS:
        return ""
    row, degree, places, node = (torch.cat(part) for part in zip(*seen, strict=True))
    degree, places = degree.double(), places.double()
    alarm = FALSE_ALARM / (len(LONG) * (BUCKETS + 3) + NEAR + 16)
    calls = torch.repeat_interleave(torch.tensor([len(one[0]) for one in seen])).to(degree.device)
    for least in LONG:
        rows = degree >= least * fanout
        if int(rows.sum()) >= FEWEST_LONG and (said := _misplaced(degree[rows], places[rows], calls[rows], alarm)):
            return said if not least else f"of rows of {least * fanout} neighbours and more {said}"
    some = torch.randperm(len(places), device=places.device)[:ROWS_PAIRED]
    few, upto = places[some].float(), degree[some]
    apart = (few[:, None, :] - few[:, :, None]).remainder_(upto.float()[:, None, None]).to(torch.int32)
    for distance in range(1, NEAR + 1):
        long = upto > 2 * distance  # at half a row's length both ways round are the same pair
        usual = fanout * (fanout - 1) / (upto[long] - 1)
        pairs = (apart == distance).sum(dim=(1, 2))[long] - usual
        if said := _off(pairs, torch.maximum(pairs.square().sum(), usual.sum()), alarm):
            return f"positions {distance} apart are not picked together as often as others: pairs a row {said}"
    if said := _in_steps(few[: max(1, TRIPLES // fanout**3)], upto[: max(1, TRIPLES // fanout**3)], alarm):
        return f"positions are not picked independently: three at equal distances, a row {said}"
    if said := _places_of_a_degree(degree, places, alarm):
        return f"positions are not equally likely in rows of one degree: {said}"
    alike = {
        "rows of a degree": torch.zeros_like(node),
        "rows of a degree in one call": calls,
        "calls of a row": row,
        "calls of a node": node,
    }
    for which, (of, key) in enumerate(alike.items()):
        key = key.long() * (1 << 31) + degree.long()
        if which < 2 and (said := _repeated(key, degree, places, alarm)):
            return f"samples are drawn from few: of {of} {said}"
        if said := _shared_often(key, degree, places, alarm):
            return f"picks are not independent: {of} share {said}"
    spread = (degree - fanout) * (degree + 1) / (12 * fanout)
    middle = (places.mean(dim=1) - (degree - 1) / 2) / spread.sqrt()
    strays = middle.square() - 1
    if said := _off(strays, strays.square().sum().clamp_min(2.0 * len(strays)), alarm):
        return f"picks of a row are not independent: how far their mean position strays {said}"
    longest = 1 + max(int(rows[-1]) for rows, *_ in seen if len(rows))
    own = [
        degree.new_zeros(longest, PARTS).index_copy_(0, rows, _by_part(places, degrees, fanout))
        for rows, degrees, places, _ in seen
    ]  # 0 where a row is not looked at
    together = torch.stack(own)
    same_row = together.sum(dim=0).square().sum(dim=1) - together.square().sum(
        dim=(0, 2)
    )  # twice the products of all pairs of calls
    if int((same_row != 0).sum()) >= FEWEST_ROWS and (said := _off(same_row, same_row.square().sum(), alarm)):
        return f"calls are not independent: in how it picks a row is like the same row of another call {said}"
    if said := _alike_at_a_distance(own, alarm):
        return f"rows are not independent: in how it picks a row is like {said}"
    if said := _follow([one[:3] for one in seen], alarm):
        return said
    even = [
        vectors.index_copy(0, rows, vectors[rows] / (degrees - fanout).div(degrees - 1).sqrt()[:, None]).float()
        for vectors, (rows, degrees, *_) in zip(own, seen, strict=True)
    ]
    if said := _follow_at_a_distance(even, alarm):
        return said
    for vectors, (rows, degrees, *_) in zip(own, seen, strict=True):
        vectors[rows[degrees < LONG[1] * fanout]] = 0
    if said := _alike_at_a_distance(own, alarm):
        return f"long rows are not independent: in how it picks one is like {said}"
    return ""


def _alike_at_a_distance(own, alarm, next_call=False) -> str:
    """Products of any two rows of a call that lie so far apart, or as far from both its ends, for all distances at once;
    with `next_call` those of a row and the rows of the call behind its own, but for the same row.

    own: of each call [rows, PARTS], of rows with an expectation of 0 and parts that vary alike.
    """
    rows = len(own[0])
    size = 1 << (2 * rows - 1).bit_length()
    behind, mirrored, varies, turned = (own[0].new_zeros(size) for _ in range(4))
    norms = [one.square().sum(dim=1) for one in own]
    waves = [torch.fft.rfft(one, size, dim=0) for one in own]
    heights = [torch.fft.rfft(norm, size) for norm in norms]
    pairs = [(at, at + next_call) for at in range(len(own) - next_call)]
    for one, other in pairs:
        behind += torch.fft.irfft((waves[one].conj() * waves[other]).sum(dim=1), size)
        varies += torch.fft.irfft(heights[one].conj() * heights[other], size)
        if not next_call:
            mirrored += torch.fft.irfft(waves[one].square().sum(dim=1), size)
            turned += torch.fft.irfft(heights[one].square(), size)
            mirrored[0 : 2 * rows : 2] -= norms[one]  # a row with itself
            turned[0 : 2 * rows : 2] -= norms[one].square()
    typical = sum(float(norm.square().sum()) for norm in norms) / max(1, sum(int((norm != 0).sum()) for norm in norms))
    found = [(behind, varies, "the one {} places behind it")]
    if next_call:
        found = [(behind, varies, "the one {} places behind it in the next call")]
    else:
        behind[rows:] = varies[rows:] = 0
        found.append((mirrored / 2, turned / 2, "the one whose place and its own add up to {}"))
        # each product is there twice, so its square is as well: half of the sum, and half of the sum of squares
    for at, (sums, squares, said) in enumerate(found):
        enough = squares > FEWEST_ROWS * typical
        enough[0] &= at == 1  # else a row with itself, or with the same row of the next call
        if not bool(enough.any()):
            continue
        z = torch.where(enough, sums / (squares / (own[0].shape[1] - 1)).clamp_min(1e-9).sqrt(), 0.0)
        usual = float(z[enough].abs().median()) / 0.6745  # parts of short rows are not alike
        z /= min(max(usual, 1.0), MOST_UNLIKE)
        worst = int(z.abs().argmax())
        if math.erfc(abs(float(z[worst])) / math.sqrt(2)) < alarm / int(enough.sum()):
            distance = worst - size if next_call and worst > size // 2 else worst
            return f"{said.format(distance)} ({float(z[worst]):+.0f} standard errors)"
    return ""


def _follow_at_a_distance(own, alarm) -> str:
    """Whether how a row is picked depends on the row so far before it in its call, in a way that one half of the calls shows and the other half
    shows, too: mirrored, multiplied, in whatever parts. For all distances at once.

    own: of each call [rows, PARTS], of rows with an expectation of 0 that vary alike, 0 where a row is not looked at.
    """
    rows, parts = own[0].shape
    if len(own) < 2:
        return ""
    size = 1 << (2 * rows - 1).bit_length()
    waves, pairs = [torch.fft.rfft(one, size, dim=0) for one in own], []
    there = [torch.fft.rfft(one.any(dim=1).double(), size) for one in own]
    for half in (0, 1):
        pairs.append(torch.fft.irfft(sum(one.abs().square() for one in there[half::2]), size)[1:rows])
    shown = own[0].new_zeros(rows - 1, dtype=torch.float64)
    for part in range(parts):  # covariances of this part of a row with every part of the other
        first, second = (
            torch.fft.irfft(sum(one[:, part, None].conj() * one for one in waves[half::2]), size, dim=0)[1:rows]
            for half in (0, 1)
        )
        shown += (first * second).sum(dim=1).double()
    usual = (pairs[0] * pairs[1]).clamp_min(1.0).sqrt()
    enough = torch.minimum(*pairs) >= FEWEST_PAIRS
    if int(enough.sum()) < FEWEST_ROWS:
        return ""
    z = torch.where(enough, shown / usual, 0.0)
    z /= float(z[enough].abs().median()) / 0.6745
    worst = int(z.argmax())
    # a bound for a sum of as many products of two normal numbers; parts of short rows are not alike, so they count as fewer
    count, most = parts * parts / 4, float(z[worst])
    at = most * math.sqrt(count)
    by = (math.sqrt(count * count + 4 * at * at) - count) / (2 * at)
    if -count / 2 * math.log1p(-by * by) - by * at >= math.log(alarm / int(enough.sum())):
        return ""
    where = f"how a row is picked says how the one {worst + 1} places behind it is"
    return f"rows are not independent: {where} ({most:+.0f} standard errors)"


def _uneven_gaps(degree, places):
    """How uneven the gaps between a row's picks are, around the row, by its rank among rows of its degree, from -1 to 1, 0 on average: no shift
    and no mirror changes it. [rows]"""
    ends = places.sort(dim=1).values
    gaps = torch.cat([ends.diff(dim=1), (ends[:, :1] - ends[:, -1:]) + degree[:, None]], dim=1)
    order = (gaps.double().square().sum(dim=1) + torch.rand(len(gaps), device=gaps.device) / 2).argsort()
    order = order[degree[order].argsort(stable=True)]
    _, own, rows = torch.unique_consecutive(degree[order], return_inverse=True, return_counts=True)
    ranks = torch.arange(len(order), device=order.device) - (rows.cumsum(0) - rows)[own]
    evenly = (2 * ranks + 1 - rows[own]).double() / rows[own]
    return torch.empty_like(evenly).index_copy_(0, order, evenly)


def _follow(calls, alarm) -> str:
    """Whether how a row is picked depends on a row so far before it, of the same call or of the one before it, whichever way.

    Of all rows their parts and gaps say so, of rows of a degree their places, too.
    calls: of each, in their order, (which rows, their degrees, the places that each picked).
    """
    row, degree, places = (torch.cat(part) for part in zip(*calls, strict=True))
    if not len(row):
        return ""
    device, fanout, call = row.device, places.shape[1], torch.tensor([len(one[0]) for one in calls])
    call = torch.repeat_interleave(call).to(device)
    parts = _by_part(places, degree, fanout).unflatten(1, (-1, 2)).sum(dim=2)
    parts /= (fanout * (degree.double() - fanout) / (degree.double() - 1)).sqrt()[:, None]
    looks = torch.cat([parts, math.sqrt(0.375) * _uneven_gaps(degree, places)[:, None]], dim=1)
    degree, places = degree.long(), places.int()
    wide = int(row.max()) + 1 + BEHIND  # no row is behind one of the call before
    at = torch.full((len(calls) + 1, wide), -1, device=device)
    at[call, row] = torch.arange(len(row), device=device)
    ways = [(0, apart) for apart in range(1, BEHIND + 1)]
    ways += [(1, apart) for apart in range(-BEHIND_OF_NEXT, BEHIND_OF_NEXT + 1) if len(calls) > 1]
    alarm /= 3 * len(ways)
    for next_call, apart in ways:
        second = at.flatten()[(call + next_call) * wide + row + apart]
        both = (second >= 0) & (row + apart >= 0)
        first, second = both.nonzero().flatten()[:PAIRED], second[both][:PAIRED]
        said = _learnt(looks[first], looks[second], (row[first] + call[first]) // BLOCK % 2 == 0, alarm)
        near = abs(apart) <= (NEAREST_OF_NEXT if next_call else NEAREST)
        for turn in range(2 * near):  # else a row is the first of one pair, and the second of another
            mine = (call[first] if next_call else row[first] // apart) % 2 == turn
            said = said or _share_alike(degree, places, first[mine], second[mine], alarm)
        if said:
            where = f"{apart} places behind it" + " in the next call" * next_call
            return f"rows are not independent: how a row is picked says how the one {where} is: {said}"
    return ""


def _learnt(first, second, known, alarm) -> str:
    """Whether the covariances of numbers of a row and numbers of another that pairs show which are `known` are those of the other pairs, too.

    Of independent rows the products by what other rows have shown are 0 on average, whatever that is.
    first, second [pairs, numbers], 0 on average; known [pairs].
    """
    shown = first[known].T @ second[known]
    found = (first[~known] @ shown * second[~known]).sum(dim=1)
    if len(found) < FEWEST_PAIRS or float(found.sum()) <= 0:
        return ""
    said = _off(found, found.square().sum(), alarm)
    return said and f"over {len(found)} pairs {said}"


def _share_alike(degree, places, first, second, alarm) -> str:
    """Whether what two of `first` share goes with what two of `second` do. first, second [pairs]: numbers of rows, none of them twice."""
    fanout = places.shape[1]
    order = torch.randperm(len(first), device=first.device)[: 4 * COMPARED]
    key = degree[first[order]] * (1 << 31) + degree[second[order]]
    key, by = key.sort()
    first, second = first[order[by]], second[order[by]]
    _, own, rows = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    place = torch.arange(len(key), device=key.device) - (rows.cumsum(0) - rows)[own]
    one = ((place % 2 == 0)[:-1] & (key[1:] == key[:-1])).nonzero().flatten()
    one = one[torch.randperm(len(one), device=one.device)[:COMPARED]]
    if not len(one):
        return ""
    number = torch.arange(fanout + 1, dtype=torch.float64, device=key.device)
    sides = []
    for rows in (first, second):
        shared = (places[rows[one]][:, :, None] == places[rows[one + 1]][:, None, :]).sum(dim=(1, 2))
        length = degree[rows[one]]
        mean, variance = _shared(fanout, length.double())
        sides.append((length, ((number - mean[:, None]) / variance.sqrt()[:, None]), shared))
    (length, values, shared), (other_length, other_values, other_shared) = sides
    pick = [one.gather(1, found[:, None])[:, 0] for one, found in ((values, shared), (other_values, other_shared))]
    total = float((pick[0] * pick[1]).sum())
    if abs(total) < SUSPECT * math.sqrt(len(one)):
        return ""
    chances, others = (_hypergeometric(fanout, one.double()) for one in (length, other_length))
    bounds = []
    for step in STEPS:
        step = math.copysign(step, total)
        moments = sum(
            (chances[:, [at]] * others * (step * values[:, [at]] * other_values).exp()).sum(dim=1)
            for at in range(fanout + 1)
        )
        bounds.append(float(moments.log().sum()) - step * total)
    if min(bounds) + math.log(2) >= math.log(alarm):
        return ""
    return f"in {len(one)} comparisons of two with two ({total / math.sqrt(len(one)):+.0f} standard errors)"


def _hypergeometric(fanout, degree):
    """Chances that two independent samples of rows of these degrees [any] share 0, 1, ... places. [any, fanout + 1]"""
    number, long = torch.arange(fanout + 1, dtype=torch.float64, device=degree.device), degree.double()[:, None]
    chances = _log_choose(fanout, number) + _log_choose(long - fanout, fanout - number) - _log_choose(long, fanout)
    return torch.where(fanout - number > long - fanout, 0.0, chances.exp())


def _in_steps(places, degree, alarm) -> str:
    """How many of a row's picks lie halfway between two others; of the C(degree, 3) triples of places floor((degree - 1)^2 / 4) are so."""
    fanout = places.shape[1]
    if fanout < 3:
        return ""
    one, other = torch.triu_indices(fanout, fanout, 1, device=places.device)
    both = places[:, one] + places[:, other]
    found = (both[:, :, None] == 2 * places[:, None, :]).sum(dim=(1, 2))  # never one of the two themselves
    usual = math.comb(fanout, 3) * torch.floor((degree - 1).square() / 4) * 6 / (degree * (degree - 1) * (degree - 2))
    apart = found - usual
    return _off(apart, torch.maximum(apart.square().sum(), usual.sum()), alarm)


def _misplaced(degree, places, calls, alarm) -> str:
    """Whether some part of a row is picked from more often than others, or rows of one call from the same parts."""
    fanout = places.shape[1]
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
    own = _by_part(places, degree, fanout)
    norms = own.square().sum(dim=1)
    count = int(calls.max()) + 1
    together = own.new_zeros(count, PARTS).index_add_(0, calls, own).square().sum(dim=1)
    alone = own.new_zeros(count).index_add_(0, calls, norms)
    # the sum of a call's vectors of PARTS that add up to 0 each: its square is as that of PARTS - 1 normal numbers, of fewer where parts are unlike
    freedom = float(alone.sum().square() / alone.square().sum()) * (PARTS - 1) / MOST_UNLIKE
    found = float(together.sum() / alone.sum())
    chance = torch.special.gammaincc(*torch.tensor([freedom / 2, freedom / 2 * found]).double())
    if float(chance) < alarm:
        return f"rows are not independent: those of one call pick from the same parts, {found:.2f} times as unevenly as others"
    return ""


def _places_of_a_degree(degree, places, alarm) -> str:
    """Whether rows of one degree pick some places more often than others, whichever these are: chi-square of all degrees of a class."""
    fanout = places.shape[1]
    for least, beyond in itertools.pairwise(SHARING):
        mine = (degree >= least * fanout) & (degree < beyond * fanout)
        if int(mine.sum()) < FEWEST_ROWS:
            continue
        lengths, own, rows = torch.unique(degree[mine].long(), return_inverse=True, return_counts=True)
        longest = int(lengths[-1])
        counts = torch.bincount(
            (own[:, None] * longest + places[mine].long()).flatten(), minlength=len(lengths) * longest
        )
        share, rows = fanout / lengths.double()[:, None], rows.double()[:, None]
        apart = (counts.view(len(lengths), longest) - rows * share).square()
        apart[torch.arange(longest, device=degree.device) >= lengths[:, None]] = 0
        statistic = (apart / (rows * share * (1 - share) * lengths[:, None] / (lengths[:, None] - 1))).sum()
        freedom = float((lengths - 1).sum())
        chance = float(torch.special.gammaincc(*torch.tensor([freedom / 2, float(statistic) / 2]).double()))
        if chance < alarm / len(SHARING):
            return f"chi-square {float(statistic):.0f} with {freedom:.0f} degrees of freedom"
    return ""


def _shared_often(key, degree, places, alarm) -> str:
    """Whether rows of the same key, which says the degree, share so many places more or less often than chance has it.

    Of two independent samples s shared places are hypergeometric, and what two rows share says nothing of either and a third.
    """
    fanout = places.shape[1]
    order = torch.randperm(len(key), device=key.device)
    order = order[key[order].argsort(stable=True)]
    key, degree, places = key[order], degree[order].long(), places[order].to(torch.int32)
    # Long rows share little by chance, so every pair of them says more; those of a class are as many, or all there are.
    group = torch.bucketize(
        degree, torch.tensor([fanout * least for least in SHARING[1:]], device=key.device), right=True
    )
    shared, lengths, groups, left = [], [], [], torch.full((len(SHARING),), PAIRS_SHARED)
    for apart in range(1, len(key)):
        one = (key[apart:] == key[:-apart]).nonzero().flatten()
        one = one[(left.to(key.device) > 0)[group[one]]]
        if not len(one):
            break
        for some in one.split(PAIRS_AT_ONCE):
            both = places[some][:, :, None] == places[some + apart][:, None, :]
            shared.append(both.sum(dim=(1, 2)))
        lengths.append(degree[one])
        groups.append(group[one])
        left -= torch.bincount(group[one].cpu(), minlength=len(SHARING))
    if not shared:
        return ""
    found, length, group = torch.cat(shared), torch.cat(lengths), torch.cat(groups)
    for which in group.unique().tolist():
        mine = group == which
        lengths, pairs = length[mine].unique(return_counts=True)
        chances = _hypergeometric(fanout, lengths)
        usual = (pairs[:, None] * chances).sum(dim=0)
        spread = (pairs[:, None] * chances * (1 - chances)).sum(dim=0)
        seen = torch.bincount(found[mine], minlength=fanout + 1).double()
        one_of = alarm / (len(SHARING) * 2 * (fanout + 1))
        for at in range(fanout + 1):
            if float(spread[at]) >= FEWEST_ROWS and (said := _off(seen[at] - usual[at], spread[at], one_of)):
                return f"{at} places not as often as chance has it: {seen[at]:.0f} times, not {usual[at]:.0f} {said}"
            many, few = float(seen[at:].sum()), float(usual[at:].sum())
            tail = float(torch.special.gammainc(*torch.tensor([max(many, 1.0), max(few, 1e-12)]).double()))
            if few < FEWEST_ROWS and many and tail < one_of:
                return f"{at} places and more {many:.0f} times, not {few:.3g}"
    return ""


def _log_choose(n, k):
    n, k = torch.as_tensor(n).double(), torch.as_tensor(k).double()
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma((n - k).clamp_min(0) + 1)


def _repeated(key, degree, places, alarm) -> str:
    """Whether rows of the same key, which says the degree, have the same sample more often than chance has it: whose samples follow from few
    bits repeat them."""
    fanout = places.shape[1]
    keys, own, rows = torch.unique(key, return_inverse=True, return_counts=True)
    length = torch.zeros(len(keys), dtype=torch.float64, device=key.device).index_copy_(0, own, degree)
    subsets = _log_choose(length, fanout)
    usual = rows.double() * (rows - 1) / 2 * (-subsets).exp()
    mixed = (places.long() + 1) * (2 * random.getrandbits(60) + 1)
    mixed = ((mixed ^ (mixed >> 31)) * (2 * random.getrandbits(60) + 1)).sum(dim=1) + own * (
        2 * random.getrandbits(60) + 1
    )
    _, first, counts = torch.unique(mixed, return_inverse=True, return_counts=True)
    pairs = torch.zeros(len(keys), dtype=torch.float64, device=key.device)
    pairs.index_add_(0, own, (counts[first] - 1).double() / 2)  # each row's share of the pairs that it is in
    for most in RARE:  # of short rows chance makes so many that more are not seen
        rare = usual < most
        seen, expected = float(pairs[rare].sum()), float(usual[rare].sum())
        tail = float(torch.special.gammainc(*torch.tensor([max(seen, 1.0), max(expected, 1e-12)]).double()))
        if seen and tail < alarm / len(RARE):
            return f"{seen:.0f} pairs are alike, not {expected:.3g}"
    return ""


MOST_UNLIKE = 2.0
"""How much more products of rows may vary than those of rows with equal parts do."""


def _by_part(places, degree, fanout):
    """How many picks more than chance puts there lie in each of PARTS equal parts of their row. [rows, PARTS], fp64, 0 on average,
    whatever the row's degree."""
    degree = degree.double()[:, None]
    ends = torch.ceil(torch.arange(PARTS + 1, device=degree.device) * degree / PARTS)
    part = (places.double()[:, None, :] >= ends[:, 1:, None]).sum(dim=1)
    taken = torch.zeros(len(places), PARTS, dtype=torch.float64, device=degree.device)
    taken.scatter_add_(1, part, torch.ones_like(part, dtype=torch.float64))
    return taken - fanout * ends.diff(dim=1) / degree


def _positions(inputs, picked, fanout, second):
    """(which rows of the call, their degrees, the positions that each picked [rows, fanout], their nodes) of some of its rows: of those that
    have more neighbours than are picked. Rows from `second` on are numbered behind those of the first half."""
    rowptr, col, frontier = inputs["rowptr"], inputs["col"], inputs["frontier"].long()
    first = rowptr[frontier.clamp_min(0)]
    degree = torch.where(frontier >= 0, rowptr[frontier.clamp_min(0) + 1] - first, 0)
    rows = (degree > fanout).nonzero().flatten()
    moved = 0
    if len(rows) > ROWS_LOOKED_AT:
        half = rows[: ROWS_LOOKED_AT // 2]
        far = rows[rows >= max(second, int(half[-1]) + 1)][: ROWS_LOOKED_AT // 2]
        moved = (int(far[0]) if len(far) else 0) - int(half[-1]) - 1
        rows = torch.cat([half, far])
    rows = rows[degree[rows].cumsum(0) <= CHUNK_EDGES]
    first, degree, ids, node = first[rows], degree[rows], picked[rows].long(), frontier[rows]
    if not len(rows):
        return rows, degree, ids, node
    owner = torch.repeat_interleave(torch.arange(len(rows), device=col.device), degree)
    within = torch.arange(len(owner), device=col.device) - (degree.cumsum(0) - degree)[owner]
    nodes = len(rowptr) - 1
    drawn = torch.randperm(len(owner), device=col.device)  # by which those of one neighbour stand in any order
    keys, order = (owner * nodes + col[first[owner] + within].long())[drawn].sort()
    order = drawn[order]
    # Of a neighbour that is there several times any places are as likely as others: as many of them as picked it.
    wanted, mine = (torch.arange(len(rows), device=col.device)[:, None] * nodes + ids).flatten().sort()
    turn = torch.arange(len(wanted), device=col.device) - torch.searchsorted(wanted, wanted)
    at = (torch.searchsorted(keys, wanted) + turn).clamp_max(len(keys) - 1)
    places = torch.empty_like(ids).flatten().index_copy_(0, mine, within[order][at]).view_as(ids)
    if moved:
        rows = torch.where(torch.arange(len(rows), device=col.device) < ROWS_LOOKED_AT // 2, rows, rows - moved)
    return rows, degree, places, node


def _off(apart, variance, alarm) -> str:
    """Whether differences, 0 on average, add up to more than chance shows. `variance` of their sum."""
    if float(variance) <= 0:
        return ""
    z = float(apart.double().sum() / variance.sqrt())
    return "" if math.erfc(abs(z) / math.sqrt(2)) >= alarm else f"({z:+.0f} standard errors)"


def _shared(fanout, degree):
    """Mean and variance of how many positions two independent samples share: it is hypergeometric."""
    mean = fanout * fanout / degree
    return mean, mean * (1 - fanout / degree) * (degree - fanout) / (degree - 1)


def _dependent(taken, fanout) -> str:
    """Tests of two samples: rows of a call, and calls of a row."""
    calls, rows, degree = taken.shape
    mean, variance = _shared(fanout, degree)
    for what, other in (("the next row", taken[:, 1::2]), ("a far row", taken[:, 1::2].roll(rows // 4, dims=1))):
        shared = (taken[:, ::2][:, : other.shape[1]] * other).sum(dim=2)
        if said := off_mean(shared, mean, variance, ALARM):
            return f"rows are not independent: with {what} of its degree a row shares {said} positions"
    for apart in range(1, calls):
        shared = (taken[apart:] * taken[:-apart]).sum(dim=2)
        if said := off_mean(shared, mean, variance, ALARM):
            return f"calls are not independent: a row shares with itself {apart} seeds later {said} positions"
    return ""
