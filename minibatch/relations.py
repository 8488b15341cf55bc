"""Neighbourhoods in graphs of several kinds of nodes and edges, sampled natively: a CSR a relation."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minibatch.graphs import GraphError, convert, ids_of, in_rows, tensor_of
from minibatch.native import library

Relation = tuple[str, str, str]
"""Kinds of source, edge and target."""


@dataclass
class Neighbourhood:
    """What was sampled; all int64. Nodes have numbers among those of their kind, seeds first."""

    nodes: dict[str, torch.Tensor]
    """Of each kind: ids."""
    trees: dict[str, torch.Tensor] | None
    """Of each kind: the seed whose neighbourhood each node is in, where they are disjoint."""
    columns: dict[Relation, torch.Tensor]
    """Numbers of the sampled edges' sources, hops one behind another."""
    rows: dict[Relation, torch.Tensor]
    """Numbers of their targets."""
    edges: dict[Relation, torch.Tensor]
    """Where they were among the relation's edges."""
    node_counts: dict[str, list[int]]
    """Of each kind: seeds, then nodes that each hop found."""
    edge_counts: dict[Relation, list[int]]
    """Of each relation: edges of each hop."""


class _Relation(ctypes.Structure):
    _fields_ = (
        ("rowptr", ctypes.c_void_p), ("col", ctypes.c_void_p), ("weights", ctypes.c_void_p), ("times", ctypes.c_void_p),
        ("source", ctypes.c_int64), ("target", ctypes.c_int64),
    )  # fmt: skip


class RelationSampler:
    """Samples in-neighbours over relations. nodes: of each kind, how many; edges: of each relation (sources, targets); fanouts:
    of each relation one a hop, -1 for all; weights: of some relations, float32 [edges]. times: of some kinds, int64 [nodes], or of
    some relations, [edges]: a seed's neighbourhood, which is then disjoint, has none that are later than the seed; `last`: the
    latest that it may have, not any. Safe to call from several threads. Raises GraphError."""

    def __init__(
        self, nodes: Mapping[str, int], edges: Mapping[Relation, tuple[Any, Any]], fanouts: Mapping[Relation, Sequence[int]], *,
        weights: Mapping[Relation, Any] | None = None, times: Mapping[Any, Any] | None = None, last: bool = False,
        replace: bool = False, disjoint: bool = False,
    ) -> None:  # fmt: skip
        self.nodes, self.relations = dict(nodes), list(edges)
        self.times = {of: _times(of, values) for of, values in (times or {}).items()}
        self.last, self.replace, self.disjoint = last, replace, disjoint or bool(self.times)
        self.hops = max((len(fanouts[relation]) for relation in self.relations), default=0)
        for relation in self.relations:
            if len(fanouts[relation]) != self.hops or any(n < -1 for n in fanouts[relation]):
                raise GraphError(
                    f"fanouts of {relation} are {list(fanouts[relation])}: give {self.hops}, at least 0, or -1 for all"
                )
        self.fanouts = torch.tensor([fanouts[relation] for relation in self.relations]).t().contiguous()
        self._held: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]] = []
        for relation, (source, target) in edges.items():
            of_source, _, of_target = relation
            ends = (
                ids_of(ids, self.nodes[kind], f"{relation}'s ids")
                for ids, kind in ((source, of_source), (target, of_target))
            )
            sources, targets = ends
            when = self.times.get(relation)
            if when is None and of_source in self.times:
                when = _of_each(self.times[of_source], self.nodes[of_source], f"nodes of {of_source}")[sources]
            if when is None:
                rowptr, place = in_rows(targets, self.nodes[of_target])
            else:  # a row's in the order of their times
                inorder = _of_each(when, len(targets), f"edges of {relation}").argsort(stable=True)
                rowptr, place = in_rows(targets[inorder], self.nodes[of_target])
                place = inorder[place]
                when = when[place]
            mine = (weights or {}).get(relation)
            if mine is not None:
                mine = convert("edge_weights", mine)[place]
                if not bool((mine >= 0).all() & mine.isfinite().all()):
                    raise GraphError(f"the weights of {relation} must be finite and at least 0")
            self._held.append((rowptr, convert("col", sources[place]), place, mine, when))
        kinds = list(self.nodes)
        self._native = (_Relation * len(self.relations))(*(
            _Relation(
                rowptr.data_ptr(), col.data_ptr(), None if mine is None else mine.data_ptr(),
                None if when is None else when.data_ptr(), kinds.index(relation[0]), kinds.index(relation[2]),
            )
            for relation, (rowptr, col, _, mine, when) in zip(self.relations, self._held, strict=True)
        ))  # fmt: skip
        self._library = library((Path(__file__).parent / "loader.cpp").read_text(), "cpu")
        self._library.neighbourhood_sample.restype = ctypes.c_void_p

    def sample(
        self, seeds: Mapping[str, torch.Tensor], seed: int, times: Mapping[str, torch.Tensor] | None = None
    ) -> Neighbourhood:
        """The neighbourhood of these seeds, by kind; `seed`, of 64 bits, picks the neighbours. times: the seeds', those of their
        nodes where None."""
        given = [ids_of(seeds.get(kind, ()), count, f"seeds of {kind}") for kind, count in self.nodes.items()]
        flat, ends = torch.cat(given), torch.tensor([len(ids) for ids in given]).cumsum(0)
        when = self._seed_times(dict(zip(self.nodes, given, strict=True)), times) if self.times else None
        kinds, steps = len(self.nodes), self.hops + 1
        sizes = torch.empty(kinds * steps + len(self.relations) * self.hops, dtype=torch.int64)
        made = self._library.neighbourhood_sample(
            self._native, *_integers(len(self.relations), kinds), _at(flat), _at(ends), _at(self.fanouts),
            *_integers(self.hops, seed, self.replace, self.disjoint), None if when is None else _at(when),
            *_integers(self.last), _at(sizes),
        )  # fmt: skip
        known = sizes[: kinds * steps].view(kinds, steps).tolist()
        found = sizes[kinds * steps :].view(len(self.relations), self.hops).tolist()
        nodes = [torch.empty(counts[-1], dtype=torch.int64) for counts in known]
        trees = [torch.empty_like(ids) for ids in nodes] if self.disjoint else None
        columns, rows, places = (
            [torch.empty(counts[-1] if counts else 0, dtype=torch.int64) for counts in found] for _ in range(3)
        )
        out = [None if arrays is None else _addresses(arrays) for arrays in (nodes, trees, columns, rows, places)]
        self._library.neighbourhood_take(ctypes.c_void_p(made), *out)
        edges = [place[at] for (_, _, place, _, _), at in zip(self._held, places, strict=True)]
        return Neighbourhood(
            dict(zip(self.nodes, nodes, strict=True)), None if trees is None else dict(zip(self.nodes, trees, strict=True)),
            self._by_relation(columns), self._by_relation(rows), self._by_relation(edges),
            {kind: _steps(counts) for kind, counts in zip(self.nodes, known, strict=True)},
            self._by_relation([_steps(counts) for counts in found]),
        )  # fmt: skip

    def _seed_times(self, seeds: dict[str, torch.Tensor], times: Mapping[str, torch.Tensor] | None) -> torch.Tensor:
        """int64 [seeds], those of each kind in turn."""
        found = []
        for kind, ids in seeds.items():
            if times is not None and kind in times:
                found.append(_of_each(_times(kind, times[kind]), len(ids), f"seeds of {kind}"))
            elif kind in self.times:
                found.append(self.times[kind][ids])
            elif len(ids):
                raise GraphError(f"seeds{f' of {kind}' if kind else ''} have no time of their own; give one for each")
        return torch.cat(found)

    def _by_relation(self, values: list[Any]) -> dict[Relation, Any]:
        return dict(zip(self.relations, values, strict=True))


def _times(of: Any, values: Any) -> torch.Tensor:
    """int64, flat."""
    found = tensor_of("times", values)
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool or found.dim() != 1:
        kind = str(found.dtype).removeprefix("torch.")
        raise GraphError(f"times of {of or 'nodes'} must be whole numbers, flat; they are {kind} {list(found.shape)}")
    return found.to(torch.int64).contiguous()


def _of_each(times: torch.Tensor, count: int, what: str) -> torch.Tensor:
    if len(times) != count:
        raise GraphError(f"there are {len(times)} times for {count} {what}")
    return times


def _steps(counts: list[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise([0, *counts])]


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _addresses(arrays: list[torch.Tensor]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.data_ptr() for array in arrays))


def _integers(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]
