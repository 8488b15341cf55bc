"""Synthetic graphs: degrees, overlap of neighbourhoods and labels of chosen shape, made on the CPU or the GPU from a seed.

`papers100M-like` has what sampling ogbn-papers100M costs, symmetrised as SALIENT trains on it: lognormal degrees, and
communities that make neighbourhoods overlap as much as those of the citation graph do (input nodes of a batch, see
../docs/minibatch.md). It is not that graph, and an accuracy on it says nothing of one there. `small` and `tiny` have planted
communities whose labels neighbours share, so that a model which aggregates rightly beats one that sees a node alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from minibatch.graphs import Graph, GraphError
from minibatch.memory import empty_pinned

EDGES_AT_ONCE = 1 << 26
"""Edges drawn in one piece: eight bytes each for some ten temporaries, 5 GB."""
ROWS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Recipe:
    nodes: int
    mean_degree: float
    sigma: float
    """Standard deviation of the degrees' logarithm."""
    max_degree: int
    community: int
    """Consecutive ids that are a community."""
    inside: float
    """Share of a node's neighbours that are of its own community."""
    classes: int
    width: int
    noise: float
    """Standard deviation of a feature; the classes' centroids have 1."""
    block: int
    """Consecutive ids that share a label: the community where labels are to be learnt from neighbours."""
    train: int
    valid: int
    test: int
    one_community: bool
    """Whether train ids all lie in the first community, as the recent papers of a benchmark do, the others behind them."""
    least_degree: int = 1
    """Least degree of the nodes that train, valid and test ids are drawn from."""


PAPERS = Recipe(
    nodes=111_059_956, mean_degree=29.0, sigma=1.6, max_degree=250_000, community=2_200_000, inside=0.9, classes=172,
    width=128, noise=4.0, block=12_800, train=1_207_179, valid=125_265, test=214_338, one_community=True, least_degree=5,
)  # fmt: skip
RECIPES = {
    "papers100M-like": PAPERS,
    "papers10M-like": Recipe(**(vars(PAPERS) | {"nodes": 11_105_995, "train": 120_717, "valid": 12_526, "test": 21_433})),
    "small": Recipe(
        nodes=60_000, mean_degree=16.0, sigma=1.2, max_degree=2_000, community=1_000, inside=0.7, classes=20, width=64,
        noise=4.0, block=1_000, train=12_000, valid=4_000, test=8_000, one_community=False,
    ),
    "tiny": Recipe(
        nodes=3_000, mean_degree=12.0, sigma=1.0, max_degree=200, community=250, inside=0.8, classes=6, width=16,
        noise=3.0, block=250, train=900, valid=300, test=600, one_community=False,
    ),
}  # fmt: skip


VERSION = 1
"""Version of the recipes and of what is drawn from them, part of a kept graph's name."""


def bytes_of(name: str) -> int:
    """About what the named graph takes in memory."""
    recipe = RECIPES[name]
    return int(recipe.nodes * (recipe.mean_degree * 4 + recipe.width * 2 + 16))


def generate(name: str, *, seed: int = 0, device: str = "cpu", features_on: str = "") -> Graph:
    """The named recipe's graph on `device`. The same seed gives the same graph on the same kind of device.

    features_on: another place for features, "cpu" or "pinned" (host memory that a GPU reads).
    """
    if name not in RECIPES:
        raise GraphError(f"there is no graph {name!r}; there is {', '.join(RECIPES)}, or name a graph's folder")
    recipe = RECIPES[name]
    rng = torch.Generator(device=device).manual_seed(seed)
    rowptr = _row_pointers(recipe, rng, device)
    col = _neighbours(recipe, rowptr, rng, device)
    labels = torch.arange(recipe.nodes, device=device) // recipe.block
    labels = (labels * 2_654_435_761 >> 7) % recipe.classes if recipe.one_community else labels % recipe.classes
    features = _features(recipe, labels, rng, device, features_on or device)
    train, valid, test = _split(recipe, rowptr, rng, device)
    return Graph(rowptr, col, features, labels, train, valid, test, recipe.classes)


def _row_pointers(recipe: Recipe, rng: torch.Generator, device: str) -> torch.Tensor:
    """Lognormal degrees with the recipe's mean, clipped; int64 [nodes + 1]."""
    middle = math.log(recipe.mean_degree) - recipe.sigma**2 / 2
    degrees = torch.randn(recipe.nodes, generator=rng, device=device).mul_(recipe.sigma).add_(middle).exp_()
    rowptr = torch.zeros(recipe.nodes + 1, dtype=torch.int64, device=device)
    torch.cumsum(degrees.round_().clamp_(1, recipe.max_degree).to(torch.int64), 0, out=rowptr[1:])
    return rowptr


def _neighbours(recipe: Recipe, rowptr: torch.Tensor, rng: torch.Generator, device: str) -> torch.Tensor:
    """int32 [edges]: each inside its row's community or anywhere, in proportion to degree either way.

    A neighbour in proportion to degree is the owner of an edge drawn evenly; the owner is found in the row pointers.
    """
    edges = int(rowptr[-1])
    col = torch.empty(edges, dtype=torch.int32, device=device)
    first = 0
    while first < recipe.nodes:
        begin = int(rowptr[first])
        last = min(int(torch.searchsorted(rowptr, begin + EDGES_AT_ONCE)), first + ROWS_AT_ONCE, recipe.nodes)
        last = max(last, first + 1)
        end = int(rowptr[last])
        rows = torch.arange(first, last, device=device)
        owner = torch.repeat_interleave(
            rows, rowptr[first + 1 : last + 1] - rowptr[first:last], output_size=end - begin
        )
        home = owner // recipe.community * recipe.community
        low = rowptr[home]
        high = rowptr[(home + recipe.community).clamp_max_(recipe.nodes)]
        anywhere = torch.rand(end - begin, generator=rng, device=device) >= recipe.inside
        low.masked_fill_(anywhere, 0)
        high.masked_fill_(anywhere, edges)
        drawn = torch.rand(end - begin, generator=rng, device=device, dtype=torch.float64)
        slot = low + (drawn * (high - low)).to(torch.int64).clamp_max_(edges - 1)
        col[begin:end] = (torch.searchsorted(rowptr, slot, right=True) - 1).to(torch.int32)
        first = last
    return col


def _features(recipe: Recipe, labels: torch.Tensor, rng: torch.Generator, device: str, place: str) -> torch.Tensor:
    """The label's centroid and noise, over sqrt(1 + noise^2); float16 on the CPU, bfloat16 on a GPU, [nodes, width]."""
    dtype = torch.float16 if device == "cpu" else torch.bfloat16
    centroids = torch.randn(recipe.classes, recipe.width, generator=rng, device=device)
    shape = (recipe.nodes, recipe.width)
    features = empty_pinned(shape, dtype) if place == "pinned" else torch.empty(shape, dtype=dtype, device=place)
    scale = 1 / math.sqrt(1 + recipe.noise**2)
    for begin in range(0, recipe.nodes, ROWS_AT_ONCE):
        part = labels[begin : begin + ROWS_AT_ONCE]
        noise = torch.randn(len(part), recipe.width, generator=rng, device=device)
        features[begin : begin + ROWS_AT_ONCE] = noise.mul_(recipe.noise).add_(centroids[part]).mul_(scale).to(dtype)
    return features


def _split(recipe: Recipe, rowptr: torch.Tensor, rng: torch.Generator, device: str) -> tuple[torch.Tensor, ...]:
    """Disjoint train, valid and test ids in random order; those of one community overflow into the next."""
    pool = recipe.community if recipe.one_community else recipe.nodes
    found: list[torch.Tensor] = []
    while sum(map(len, found)) < recipe.train + recipe.valid + recipe.test:
        begin = len(found) * pool
        degree = rowptr[begin + 1 : begin + pool + 1] - rowptr[begin : begin + pool]
        ids = torch.nonzero(degree >= recipe.least_degree).flatten() + begin
        found.append(ids[torch.randperm(len(ids), generator=rng, device=device)])
    ids, sizes = torch.cat(found), (recipe.train, recipe.valid, recipe.test)
    return tuple(part.clone() for part in ids[: sum(sizes)].split(sizes))
