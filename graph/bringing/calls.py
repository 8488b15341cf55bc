"""Calls of a kernel: which argument is which of its parameters, and what their sizes have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from graph.bringing.names import alike, dtype_name, flat, python_parameters, same
from graph.watched_calls import SeenCall
from harness.backends import SCALAR_TYPES, form_of
from harness.capture.extents import Extents, axis_name
from harness.capture.signature import CFunction, CParameter
from kernels.spec import DTYPE_BYTES

MOST_COLUMNS = 256
"""Extents up to which integers below them say nothing."""

_TORCH_DTYPES = {name.lower(): dtype for dtype, name in SCALAR_TYPES.items()} | {name: name for name in DTYPE_BYTES}
"""What C++ calls a dtype behind `k` or `ScalarType::`, in small letters -> its name."""


@dataclass
class Calls:
    """Of one function, all of one form."""

    source: Path
    text: str
    symbol: str
    taken: CFunction | None
    calls: list[SeenCall]
    reference: str
    to: Path
    include: tuple[Path, ...]
    flags: tuple[str, ...]
    sources: tuple[Path, ...] = ()
    fixed: frozenset[str] = frozenset()
    """Axes that are numbers: the reference works at their one size alone."""

    def __post_init__(self) -> None:
        self.first = self.calls[0]
        self.doubts: list[str] = []
        self.guessed: dict[float, str] = {}
        """Numbers of the reference that are a parameter, by their value."""
        named: dict[str, tuple[int, ...]] = {}
        for name in self.first.sizes:
            sizes = tuple(call.sizes.get(name, 0) for call in self.calls)
            if all(sizes) and max(sizes) > 1 and len(name) > 1:
                named[name] = sizes
        for name in self.first.numbers:
            values = tuple(call.numbers[name] for call in self.calls)
            whole = all(type(one) is int and one > 0 for one in values) and max(values) > 1
            if whole and (len(set(values)) > 1 or len(self.calls) == 1):
                named[name] = values
        named |= self._indexed(named)
        self.extents = Extents(named, len(self.calls), self.fixed)
        self.doubts += [
            f"{name} is fixed at its size: the steps of what the test expects work at no other"
            for name in sorted(self.fixed)
        ]
        self.unseen: list[str] = []
        """Numbers of the spec that no call has given."""
        self.extent_of: dict[str, str] = {}
        """Parameters that are written into the call as an expression of sizes."""
        self.held: dict[str, str] = {}
        """Parameters of a Python function that no spec holds, and Python of what they are."""
        self.shapes: dict[str, tuple[str, ...]] = {}
        """Tensor -> its extents as expressions of the axes."""
        self.unread: list[str] = []
        """Tensors that the kernel may write, and what is right does not depend on."""
        self.order = self._order()
        self._as_made()

    def _indexed(self, named: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Rows of tensors that integers of the calls seem to index: an axis, though every call has as many."""
        tops = list[tuple[int, ...]]()
        for name, tensor in self.first.tensors.items():
            if (
                name not in self.first.outputs
                and dtype_name(tensor).startswith(("int", "uint"))
                and tensor.itemsize > 1
            ):
                series = [call.tensors[name] for call in self.calls]
                if all(one.numel() and int(one.min()) >= -1 for one in series):
                    tops.append(tuple(int(one.max()) for one in series))
        inner = {size for call in self.calls for one in call.tensors.values() for size in one.shape[1:]}
        found = dict[tuple[int, ...], str]()
        for name, tensor in self.first.tensors.items():
            rows = tensor.shape[0] if tensor.dim() > 1 else 0
            sizes = tuple(call.tensors[name].shape[0] for call in self.calls) if rows > MOST_COLUMNS else ()
            is_free = set(sizes) == {rows} and rows not in inner and sizes not in named.values()
            if is_free and any(max(top) < rows <= 2 * max(top) + 2 for top in tops):
                found.setdefault(sizes, f"{name}_0")
        return {name: sizes for sizes, name in found.items()}

    def _order(self) -> list[tuple[str, CParameter | None]]:
        """(what the calls name it, the function's parameter) in the function's order; what it does not take is left out."""
        inside = {name for held in self.first.lists.values() for name in flat(held)}
        tensors = [name for name in self.first.tensors if name not in inside]
        tensors, numbers = [*tensors, *self.first.lists], list(self.first.numbers)
        if self.taken is None:
            own = python_parameters(self.text, self.symbol)
            named = [
                name
                for name in numbers
                if self.first.numbers[name] is not None and (not self.reference or not own or name in own)
            ]
            return [(name, None) for name in (*self.first.tensors, *named)]
        parameters = [one for one in self.taken.parameters if not one.is_stream]
        found: dict[int, str] = {}
        for fits in (same, alike):
            for at, parameter in enumerate(parameters):
                absent = [name for name in numbers if self.first.numbers[name] is None and parameter.is_optional]
                pool = [*tensors, *absent] if parameter.is_tensor else numbers
                name = next((one for one in pool if one not in found.values() and fits(one, parameter.name)), None)
                if at not in found and name is not None:
                    found[at] = name
        for tensor_like, pool in ((True, tensors), (False, numbers)):
            rest = [name for name in pool if name not in found.values()]
            free = [at for at, one in enumerate(parameters) if one.is_tensor == tensor_like and at not in found]
            written = [at for at in free if not parameters[at].is_read_only]
            if tensor_like and len(rest) != len(free) and self.taken.returns == "void":
                outs = [name for name in rest if name in self.first.outputs]
                for at, name in zip(written, outs, strict=False):
                    found[at] = name
                rest = [name for name in rest if name not in outs]
                free = [at for at in free if at not in found]
            if (
                tensor_like and len(rest) != len(free) and self.taken.returns != "void"
            ):  # what it returns it does not take
                rest = [name for name in rest if name not in self.first.outputs or name in self.first.both]
            if len(rest) == len(free):
                for at, name in zip(free, rest, strict=True):
                    found[at] = name
                    if rest and not same(name, parameters[at].name):
                        self.doubts.append(f"{parameters[at].name} is taken for the test's {name}, by its place")
        last = max((at for at, one in enumerate(parameters) if at in found or not one.default), default=-1)
        order: list[tuple[str, CParameter | None]] = [
            (found.get(at, ""), one) for at, one in enumerate(parameters[: last + 1])
        ]
        if self.taken.returns != "void":
            order += [(name, None) for name in self.first.outputs if name not in found.values() and name not in inside]
        listed = self.first.lists
        return [(name, one) for seen, one in order for name in flat(listed.get(seen, [seen]))]

    def _as_made(self) -> None:
        """What the function returns is of the dtype that its text makes it in: tests compare with wider floats."""
        import torch

        made = self.taken.made if self.taken is not None else ()
        returned = [seen for seen, parameter in self.order if parameter is None and seen in self.first.outputs]
        if len(made) > len(returned) > 0:
            left = ", ".join(one.name for one in made[len(returned) :])
            self.doubts.append(
                f"{self.symbol} returns {len(made)} tensors, and the test compares {len(returned)}: nobody looks at {left}, unless the spec has it "
                "as an output and reference.py makes it"
            )
        names = {parameter.name: seen for seen, parameter in self.order if parameter is not None}
        for seen, one in zip(returned, made, strict=False):
            for call in self.calls:
                like = call.tensors.get(names.get(one.like, ""))
                kind = _TORCH_DTYPES.get(one.scalar_type.lower(), "") if like is None else dtype_name(like)
                if kind and call.tensors[seen].is_floating_point() and call.tensors[seen].numel() > 1:
                    call.tensors[seen] = call.tensors[seen].to(getattr(torch, kind))

    def list_of(self, seen: str) -> str:
        """The list of tensors that the calls give it in, "" where it stands by itself."""
        return next((name for name, held in self.first.lists.items() if seen in flat(held)), "")

    def name_of(self, seen: str, parameter: CParameter | None) -> str:
        if (listed := self.list_of(seen)) and parameter is not None:
            return axis_name(f"{parameter.name}{seen.removeprefix(listed)}")
        return axis_name(parameter.name if parameter is not None and parameter.name else seen)

    def is_bound(self) -> bool:
        """Whether the entry is a call of the function, written into build.binding: of plain pointers, and no entry as it stands."""
        taken = self.taken
        if taken is None or form_of(self.text) != "plain":
            return False
        return taken.is_kernel or not taken.has_c_linkage or bool(taken.template) or "::" in self.symbol

    def find_dtypes(self) -> tuple[str, ...]:
        """The workloads' dtypes: of the first floating tensor whose dtype changes, or else of the first."""
        floats = [name for name in self.first.tensors if self.first.tensors[name].is_floating_point()]
        series = {
            name: [dtype_name(call.tensors[name]) for call in self.calls] for name in floats or self.first.tensors
        }
        changing = [name for name, kinds in series.items() if len(set(kinds)) > 1] or list(series)
        self.series = series[changing[0]]
        read = [name for name in series if series[name] == self.series and name not in self.first.outputs]
        self.leader = (read or changing)[0]  # an input, so that the reference can ask for its dtype
        self.dtypes = tuple(dict.fromkeys(self.series))
        return self.dtypes
