"""A kernel's folder from an engine's own test, or from a function and example arguments: `run.py bring`."""

from __future__ import annotations

import enum
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graph.watched_calls import SeenCall, watch_function, watch_test
from harness.backends import C_TYPES, HOST_TYPES, SCALAR_TYPES, form_of, is_python, python_module
from harness.capture import distribution_of
from harness.capture.extents import Extents, axis_name
from harness.capture.modules import find_modules
from harness.capture.signature import CFunction, CParameter, find_headers, read_function
from harness.capture.source import CaptureError
from harness.capture.written import WIDE, WIDE_SOURCE, DtypeOf, Number
from kernels.catalog import KernelError
from kernels.spec import DTYPE_BYTES

if TYPE_CHECKING:
    import torch

EACH = 8
"""Workloads that are timed, that are checked only, that are held out."""
ALIKE = {
    "x": "input", "inp": "input", "in": "input", "src": "input", "hidden_states": "input", "y": "out", "output": "out", "dst": "out",
    "res": "residual", "w": "weight", "gamma": "weight", "bias": "beta", "pos": "positions", "position_ids": "positions",
    "epsilon": "eps", "variance_epsilon": "eps", "out_": "out", "output_q": "out_q", "scale": "scales", "result": "out",
}  # fmt: skip
"""Other names that engines give the same thing."""
COLUMNS = frozenset(
    ("cols", "columns", "col", "hidden", "hidden_units", "width", "d", "dim", "hidden_dimension", "elems_per_row", "elements_per_row",
     "row_length")
)  # fmt: skip
ROWS = frozenset(("rows", "row", "m", "tokens", "batch", "token"))
ELEMENTS = frozenset(("n", "k", "size", "numel", "total", "elements", "count", "nelements", "length", "len", "elem"))
"""Names of whole numbers: the last extent of the largest input, the first, all of its elements."""
POINTED_AT = {
    *C_TYPES.values(),
    *HOST_TYPES.values(),
    "int",
    "long",
    "short",
    "unsigned",
    "char",
    "void",
    "half",
    "nv_bfloat16",
}
"""What a pointer may point to that is given a tensor as it is."""
TORCH_NAMES = {"float16": "c10::Half", "bfloat16": "c10::BFloat16"}
C_NAMES = {"float32": "float", "float16": "half", "bfloat16": "__nv_bfloat16", "float64": "double"}


def bring(
    target: str, source: Path, symbol: str, to: Path, *, arguments: str = "", function: str = "", include: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (), sources: tuple[Path, ...] = (),
) -> Iterator[str]:  # fmt: skip
    """Write the folder; sentences on what was not found out. Raises KernelError where nothing can be written."""
    if to.exists() and any(to.iterdir()):
        raise KernelError(f"{to} is not empty; name another folder")
    text = source.read_text(encoding="utf-8", errors="replace")
    if is_python(text) and python_module.uses_cute_dsl(text):
        raise KernelError(f"{source}: {python_module.CUTE_DSL}")
    try:
        taken = None if is_python(text) else read_function(text, symbol)
        if "::test" in target or re.search(r"\.py::", target):
            calls, reference, more = watch_test(target, function or _bare(symbol))
        else:
            calls, reference, more = watch_function(target, arguments)
    except CaptureError as error:
        raise KernelError(f"{source if 'function' in str(error) else target}: {error}") from None
    yield from more
    common = Counter(map(repr, (call.form() for call in calls))).most_common(1)[0][0]
    kept = [call for call in calls if repr(call.form()) == common]
    if len(kept) < len(calls):
        yield f"{len(calls) - len(kept)} of {len(calls)} calls are left out: their arguments, or the steps of what is expected, differ from the others'"
    binds_itself = re.search(r"TVM_FFI_DLL_EXPORT|PYBIND11_MODULE|TORCH_LIBRARY", text)
    if taken is not None and taken.namespace and not binds_itself and not taken.has_c_linkage:
        outer = taken.namespace.split("::")
        if symbol.split("::")[0] not in outer:
            symbol = f"{taken.namespace}::{symbol}"
    yield from Folder(source, text, symbol, taken, kept, reference, to, include, flags, sources).write()


def _bare(symbol: str) -> str:
    """A function's own name; of a class that has it, the class's, which is what Python calls it by."""
    parts = re.sub(r"<.*?>", "", re.sub(r"<[^<>]*<[^<>]*>[^<>]*>", "<>", symbol)).split("::")
    return parts[-2] if parts[-1] in ("run", "launch", "forward", "apply") and len(parts) > 1 else parts[-1]


@dataclass
class Folder:
    """What becomes of calls of a kernel: its folder."""

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
        self.extents = Extents(named, len(self.calls))
        self.unseen: list[str] = []
        """Numbers of the spec that no call has given."""
        self.extent_of: dict[str, str] = {}
        """Parameters that are written into the call as an expression of sizes."""
        self.shapes: dict[str, tuple[str, ...]] = {}
        """Tensor -> its extents as expressions of the axes."""
        self.order = self._order()

    # --- arguments ---------------------------------------------------------------------------------------------------

    def _order(self) -> list[tuple[str, CParameter | None]]:
        """(what the calls name it, the function's parameter) in the function's order; what it does not take is left out."""
        inside = {name for held in self.first.lists.values() for name in _flat(held)}
        tensors = [name for name in self.first.tensors if name not in inside]
        tensors, numbers = [*tensors, *self.first.lists], list(self.first.numbers)
        if self.taken is None:
            tensors = list(self.first.tensors)
            return [(name, None) for name in (*tensors, *numbers)]
        parameters = [one for one in self.taken.parameters if not one.is_stream]
        found: dict[int, str] = {}
        for fits in (_same, _alike):
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
            if tensor_like and len(rest) != len(free):
                outs = [name for name in rest if name in self.first.outputs]
                for at, name in zip(written, outs, strict=False):
                    found[at] = name
                rest = [name for name in rest if name not in outs]
                free = [at for at in free if at not in found]
            if len(rest) == len(free):
                for at, name in zip(free, rest, strict=True):
                    found[at] = name
                    if rest and not _same(name, parameters[at].name):
                        self.doubts.append(f"{parameters[at].name} is taken for the test's {name}, by its place")
        last = max((at for at, one in enumerate(parameters) if at in found or not one.default), default=-1)
        order: list[tuple[str, CParameter | None]] = [
            (found.get(at, ""), one) for at, one in enumerate(parameters[: last + 1])
        ]
        if self.taken.returns != "void":
            order += [(name, None) for name in self.first.outputs if name not in found.values() and name not in inside]
        listed = self.first.lists
        return [(name, one) for seen, one in order for name in _flat(listed.get(seen, [seen]))]

    def _in_list(self, seen: str) -> str:
        """The list of tensors that the calls give it in, "" where it stands by itself."""
        return next((name for name, held in self.first.lists.items() if seen in _flat(held)), "")

    def _name(self, seen: str, parameter: CParameter | None) -> str:
        if (listed := self._in_list(seen)) and parameter is not None:
            return axis_name(f"{parameter.name}{seen.removeprefix(listed)}")
        return axis_name(parameter.name if parameter is not None and parameter.name else seen)

    # --- the files ---------------------------------------------------------------------------------------------------

    def write(self) -> Iterator[str]:
        """All of the folder. Sentences on what was not found out."""
        self.to.mkdir(parents=True, exist_ok=True)
        on_cpu = self.source.suffix in (".cpp", ".cc", ".c") and not any(one.suffix == ".cu" for one in self.sources)
        suffix = ".py" if self.taken is None else ".cpp" if on_cpu else ".cu"
        shutil.copyfile(self.source, self.to / f"baseline{suffix}")
        arguments, names = self._arguments()
        build = self._build(suffix)
        self._reference(names)
        axes = self.extents.axes or {"one": (1,) * len(self.calls)}
        name = axis_name(_bare(self.symbol))
        entry = _bare(self.symbol) if self.taken is None else name if self.binding else self.taken.name
        lines = [
            "from kernels.spec import Scalar, Size, Spec, Tensor, Workload", "", "SPEC = Spec(", f"    name={name!r},",
            f"    summary={f'{self.symbol} of {self.source.name}'!r},", *([f"    entry={entry!r},"] if entry != name else []),
            f"    axes={tuple(axes)!r},", f"    dtypes={self.dtypes!r},", "    arguments=(",
            *(f"        {one}," for one in arguments), "    ),", *([f"    build={build!r},"] if build else []), "    workloads=(",
            *(f"        {one}," for one in self._workloads(axes, suffix)), "    ),", ")", "",
        ]  # fmt: skip
        (self.to / "spec.py").write_text("\n".join(lines))
        yield from dict.fromkeys(self.doubts)

    def _build(self, suffix: str) -> dict[str, Any]:
        self.binding: Any = ""
        if self.taken is None:
            return self._python_build()
        build: dict[str, Any] = {"flags": self.flags} if self.flags else {}
        if self.source.suffix == ".c" and suffix == ".cpp":
            build["language"] = "c"
        headers = find_headers(self.source, self.include, self.sources)
        for name, path in headers.files.items():
            place = self.to / "include" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
        folders = [f"include/{name}" if name != "." else "include" for name in headers.folders]
        for folder in folders:
            (self.to / folder).mkdir(parents=True, exist_ok=True)
            if headers.files and not any((self.to / folder).iterdir()):
                (self.to / folder / "here.h").write_text("")  # a folder without files does not travel
        if headers.files:
            build["include"] = tuple(folders)
        if self.sources:
            build["sources"] = headers.sources
        form = form_of(self.text)
        dtypes = self._dtypes()
        if form == "plain" and self.taken.is_kernel:
            self.doubts.append(
                f"{self.taken.name} is a kernel without a host function: how it is launched stands in build.binding as "
                "<<<1, 256, 0, stream>>>, which is to be replaced by the engine's grid and block"
            )
        launch = "<<<1, 256, 0, stream>>>" if self.taken.is_kernel else ""
        casts = self._casts() if form == "plain" and "language" not in build else {}
        given: dict[str, str] = {}
        for seen, parameter in self.order:
            name = self._name(seen, parameter)
            if parameter is None and form != "plain":
                continue  # it is returned
            if self._in_list(seen) and parameter is not None:
                name = axis_name(parameter.name)
            given[name] = casts.get(name, "") + self.extent_of.get(name, name)
        names = ", ".join(given.values())
        takes_stream = any(one.is_stream for one in self.taken.parameters)
        by_dtype = "{T}" in self.symbol or (bool(self.taken.template) and "<" not in self.symbol)
        whole = form == "plain" or bool(self.extent_of) or (by_dtype and form in ("torch", "stable"))
        call = f"({names}{', stream' if takes_stream and suffix == '.cu' else ''})" if whole else ""
        c_names = C_NAMES | TORCH_NAMES if form in ("torch", "stable") else C_NAMES
        bare = self.symbol.rpartition("::")[2]
        if "{T}" in self.symbol:
            self.binding = {
                dtype: self.symbol.replace("{T}", c_names.get(dtype, dtype)) + launch + call for dtype in dtypes
            }
        elif "<" in self.symbol or not self.taken.template:
            numbers = [] if "<" in self.symbol else self.taken.numbers
            plain = form == "plain" and (self.taken.is_kernel or not self.taken.has_c_linkage)
            if plain or call or "<" in self.symbol or "::" in self.symbol:
                around = f"{self.taken.namespace}::" if self.taken.namespace and "::" not in self.symbol else ""
                self.binding = f"{around if form != 'plain' else ''}{self.symbol}{launch}{call}"
            elif bare != self.taken.name:
                self.binding = self.symbol
            if numbers:
                self.doubts.append(
                    f"{self.symbol} has template parameters ({', '.join(numbers)}): name an instance by --symbol '{self.symbol}<...>'"
                )
        else:
            if self.taken.numbers:
                self.doubts.append(
                    f"{self.symbol} is a template with {', '.join(self.taken.numbers)} beside its types: name an instance by --symbol '{self.symbol}<...>'"
                )
            kinds = len(self.taken.template)
            self.binding = {
                dtype: f"{self.symbol}<{', '.join([c_names.get(dtype, dtype)] * kinds)}>{launch}{call}"
                for dtype in dtypes
            }
        if self.binding:
            build["binding"] = self.binding
        return build

    def _casts(self) -> dict[str, str]:
        """Pointers to structs and types of the engine's own: argument -> the cast that its binding needs."""
        assert self.taken is not None
        found = {}
        for seen, parameter in self.order:
            if parameter is None or not (
                kind := re.fullmatch(r"((?:const\s+)?([\w:]+)(?:\s+const)?\s*\*)[\s\w]*", parameter.type)
            ):
                continue
            if kind[2].removeprefix("std::") not in POINTED_AT and not any(
                re.search(rf"\b{one}\b", kind[2]) for one in self.taken.template
            ):
                found[self._name(seen, parameter)] = f"({kind[1]})"
        return found

    def _python_build(self) -> dict[str, Any]:
        modules = find_modules(self.source)
        if modules.missing:
            self.doubts.append(
                f"{self.source.name} imports {', '.join(modules.missing)}, which its checkout and the box do not have"
            )
        for name, path in modules.files.items():
            place = self.to / "include" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
        inner = {"binding": modules.name} if "." in modules.name else {}
        return {"include": ("include",), **inner} if modules.files else {}

    def _is_bound(self) -> bool:
        """Whether the entry is a call of the function, written into build.binding: of plain pointers, and no entry as it stands."""
        taken = self.taken
        if taken is None or form_of(self.text) != "plain":
            return False
        return taken.is_kernel or not taken.has_c_linkage or bool(taken.template) or "::" in self.symbol

    def _extent(self, name: str) -> str:
        """What a whole number of that name is, by the way engines call extents; "" where its name says nothing."""
        inputs = [
            tensor
            for seen, tensor in self.first.tensors.items()
            if seen not in self.first.outputs or seen in self.first.both
        ]
        if not inputs:
            return ""
        first = max(inputs, key=lambda tensor: (tensor.dim(), tensor.numel()))
        seen = next(seen for seen, tensor in self.first.tensors.items() if tensor is first)
        shape = [
            self.extents.take(f"{seen}_{dim}", tuple(call.tensors[seen].shape[dim] for call in self.calls))
            for dim in range(first.dim())
        ]
        bare = re.sub(r"^(num_|n_|n(?=rows|cols|tokens))|(_size|_dim|_len)$", "", name)
        rest = "*".join(f"({one})" if re.search(r"[ +-]", one) else one for one in shape)
        beside_m = name == "n" and self.taken is not None and any(one.name == "m" for one in self.taken.parameters)
        if bare in COLUMNS or beside_m:
            return shape[-1]
        if bare in ROWS:
            return "*".join(shape[:-1]) if len(shape) == 2 else ""
        return rest if bare in ELEMENTS else ""

    def _dtypes(self) -> tuple[str, ...]:
        """The workloads' dtypes: of the first floating tensor whose dtype changes, or else of the first."""
        floats = [name for name in self.first.tensors if self.first.tensors[name].is_floating_point()]
        series = {name: [_dtype(call.tensors[name]) for call in self.calls] for name in floats or self.first.tensors}
        self.leader = next((name for name, kinds in series.items() if len(set(kinds)) > 1), next(iter(series)))
        self.series = series[self.leader]
        self.dtypes = tuple(dict.fromkeys(self.series))
        return self.dtypes

    def _arguments(self) -> tuple[list[str], dict[str, str]]:
        """The spec's arguments as Python, and the calls' names -> the spec's."""
        self._dtypes()
        lines, names = [], dict[str, str]()
        for seen, parameter in self.order:
            name = self._name(seen, parameter)
            names[seen] = name
            if seen in self.first.tensors:
                lines.append(self._tensor(seen, name))
            elif seen:
                lines.append(self._number(seen, name, parameter))
            else:
                assert parameter is not None
                lines.append(self._unseen(name, parameter))
        left = [name for name in (*self.first.tensors, *self.first.numbers) if name and name not in names]
        for name in left:
            value = self.first.numbers.get(name)
            if name in self.first.tensors or (value is not None and type(value) in (int, float)):
                self.doubts.append(
                    f"{name}, which the calls give, is no parameter of {self.symbol} as far as names and places show"
                )
        lines = [line for line in lines if line]
        if self.taken is None or self._is_bound() or form_of(self.text) != "plain":
            # A candidate of plain C is called with sizes; the engine's own function is called without these.
            sizes = [f"Size(name={axis!r})" for axis in self.extents.axes]
            lines += [line for line in sizes if line not in lines]
        return lines, names

    def _tensor(self, seen: str, name: str) -> str:
        tensors = [call.tensors[seen] for call in self.calls]
        shape = tuple(
            self.extents.take(f"{name}_{dim}", tuple(tensor.shape[dim] for tensor in tensors))
            for dim in range(tensors[0].dim())
        ) or ("1",)
        self.shapes[seen] = shape
        role = (
            "inout"
            if seen in self.first.both and seen in self.first.outputs
            else "output"
            if seen in self.first.outputs
            else "input"
        )
        parts = [f"name={name!r}", f"role={role!r}", f"shape={shape!r}"]
        kinds = [_dtype(tensor) for tensor in tensors]
        if kinds != self.series:
            if len(set(kinds)) > 1:
                self.doubts.append(
                    f"{name} is of several dtypes ({', '.join(dict.fromkeys(kinds))}) that do not go with {self.leader}'s: the first is taken"
                )
            parts.append(f"dtype={kinds[0]!r}")
        if kinds[0] not in DTYPE_BYTES:
            self.doubts.append(f"{name} is of {kinds[0]}, which a spec cannot say")
        if strides := self._strides(seen, name, shape):
            parts.append(f"strides={strides!r}")
        if role != "output":
            values = self._values(name, tensors)
            if values:
                parts.append(f"values=({values!r},)")
        parameter = next((one for held, one in self.order if held == seen), None)
        if listed := self._in_list(seen):
            held = self.first.lists[listed]
            place = next((f"/{at}" for at, one in enumerate(held) if isinstance(one, list) and seen in one), "")
            parts.append(f"in_list={axis_name(parameter.name if parameter is not None else listed) + place!r}")
        return f"Tensor({', '.join(parts)})"

    def _strides(self, seen: str, name: str, shape: tuple[str, ...]) -> tuple[str, ...]:
        """Expressions of the axes, where a call gave it with others than a contiguous tensor's; else ()."""
        given = [call.strides.get(seen, ()) for call in self.calls]
        extents = [call.tensors[seen].shape for call in self.calls]
        plain = [tuple(math.prod(one[dim + 1 :]) for dim in range(len(one))) for one in extents]

        def counts(dim: int) -> bool:
            return any(
                one and sizes[dim] > 1 and one[dim] != known[dim]
                for one, sizes, known in zip(given, extents, plain, strict=True)
            )

        dims = range(len(extents[0]))
        if not any(map(counts, dims)):
            return ()
        found = []
        for dim in dims:
            inner = [f"({one})" if re.search(r"[ +-]", one) else one for one in shape[dim + 1 :] if one != "1"]
            series = tuple(one[dim] if one else known[dim] for one, known in zip(given, plain, strict=True))
            if counts(dim):
                found.append("1" if set(series) == {1} else self.extents.take(f"{name}_stride_{dim}", series))
            else:
                found.append("*".join(inner) or "1")
        return tuple(found)

    def _values(self, name: str, tensors: list[torch.Tensor]) -> str:
        found = [distribution_of(tensor) for tensor in tensors]
        if tensors[0].is_floating_point():
            if all(one == "ordinary" for one in found):
                return ""
            usable = [one for one in found if one not in ("stored", "given", "among")]
            if len(usable) < len(found) and max(tensor.numel() for tensor in tensors) >= 64:
                self.doubts.append(
                    f"how {name} is distributed was not found out: it is drawn as normal numbers (values, or a function of inputs.py)"
                )
            if usable and len({one.partition(":")[0] for one in usable}) == 1:
                return usable[0]
            return ""
        if tensors[0].dtype.is_complex or str(tensors[0].dtype) == "torch.bool":
            return "integers:0:2"
        low, high = (int(getattr(_stacked(tensors), end)()) for end in ("min", "max"))
        return self._integers(name, tensors, low, high)

    def _integers(self, name: str, tensors: list[torch.Tensor], low: int, high: int) -> str:
        """The distribution by what integers have in common over the calls, and a doubt where they are a guess."""
        flat = [tensor.flatten().long() for tensor in tensors]
        tops = tuple(int(one.max()) for one in flat)
        ends = tuple(int(one[-1]) for one in flat)
        rising = all(bool((one[1:] >= one[:-1]).all()) and int(one[0]) == 0 for one in flat) and all(
            len(one) > 1 for one in flat
        )
        axes = self.extents.axes
        if rising and (axis := next((axis for axis, sizes in axes.items() if sizes == ends), None)):
            return f"offsets:{axis}"
        fitting = [
            axis for axis, sizes in axes.items() if all(top < size for top, size in zip(tops, sizes, strict=True))
        ]
        fitting.sort(key=lambda axis: max(size - top for top, size in zip(tops, axes[axis], strict=True)))
        distinct = all(len(one.unique()) == len(one) for one in flat) and max(map(len, flat)) > 1
        if tensors[0].itemsize == 1:
            whole = low == (0 if _dtype(tensors[0]) == "uint8" else -128) and high - low == 255
            return "bits" if whole else f"integers:{low}:{high + 1}"
        if low >= -1 and fitting and high > 1:
            room = all(len(one) <= size for one, size in zip(flat, axes[fitting[0]], strict=True))
            kind = (
                ("permutation" if low >= 0 else "distinct") if distinct and room else "padded" if low < 0 else "index"
            )
            self.doubts.append(
                f"{name} holds integers from {low} to {high}{', no two the same' if distinct else ''}: {kind}:{fitting[0]} is a guess"
            )
            return f"{kind}:{fitting[0]}"
        self.doubts.append(f"{name} holds integers from {low} to {high}: what bounds them was not found out")
        return f"integers:{low}:{high + 1}"

    def _number(self, seen: str, name: str, parameter: CParameter | None) -> str:
        values = [call.numbers[seen] for call in self.calls]
        first = values[0]
        if parameter is not None and (text := self._written(values, parameter)):
            self.extent_of[name] = text
            return ""
        if type(first) is int and name in self.extents.axes:
            return f"Size(name={name!r})"
        if len(set(map(repr, values))) > 1:
            if all(type(value) is int and value > 0 for value in values):
                self.extents.axes[name] = tuple(values)
                return f"Size(name={name!r})"
            first = False if type(first) is bool else first
            self.doubts.append(
                f"{name} changes from call to call ({', '.join(map(str, dict.fromkeys(values)))}): {first} is taken"
            )
        if type(first) in (int, bool, float):
            whole = type(first) is not float
            first = 0 if "pdl" in name else first  # the caller's choice: kernels.md
            kind = "int64_t" if whole else "double" if parameter is not None and "double" in parameter.type else "float"
            return f"Scalar(name={name!r}, ctype={kind!r}, value={first if type(first) is float else int(first)})"
        if first is None:
            self.doubts.append(
                f"{name} is None in the calls: what the function then gets was not found out; bind a call without it (build.binding)"
            )
        else:
            self.doubts.append(f"{name} is {first!r}, which a spec cannot hold: bind a call with it (build.binding)")
        return ""

    def _written(self, values: list[Any], parameter: CParameter) -> str:
        """C++ of what no spec holds: a dtype, a text, a list of numbers, one of an enumeration, nothing. "" where it is another, or plain C."""
        import torch

        first, form = values[0], form_of(self.text)
        first = first.value if isinstance(first, enum.Enum) else first
        named = re.sub(r"\bconst\b|&", "", parameter.type).strip()
        known = (
            parameter.is_whole or parameter.is_tensor or re.search(r"\b(double|float|Scalar|half|bool|char)\b", named)
        )
        if (
            type(first) is int
            and not known
            and re.fullmatch(r"(enum )?[A-Za-z_][\w:]*", named)
            and self.source.suffix != ".c"
        ):
            return f"static_cast<{named}>({first})"  # an enumeration
        if form == "plain":
            return ""
        if isinstance(first, torch.dtype):
            kinds = [str(one).removeprefix("torch.") for one in values]
            if kinds == self.series and self.leader in self.first.tensors and len(set(kinds)) > 1:
                leader = next((self._name(*one) for one in self.order if one[0] == self.leader), self.leader)
                return f"{leader}.dtype()" if form == "tvm_ffi" else f"{leader}.scalar_type()"
            return dtype_in(form, kinds[0])
        if isinstance(first, str):
            return json.dumps(first)
        if first is None:
            return "std::nullopt" if parameter.is_optional else "nullptr" if "*" in parameter.type else ""
        if isinstance(first, tuple | list) and all(type(one) in (int, float, bool) for one in first):
            if any(len(one) != len(first) for one in values):
                self.doubts.append(
                    f"{parameter.name} is a list whose length changes from call to call: the first is taken"
                )
                values = [first] * len(values)
            return "{" + ", ".join(self._entry(list(series)) for series in zip(*values, strict=True)) + "}"
        return ""

    def _entry(self, series: list[Any]) -> str:
        """A number of a list: an axis where it changes as that does."""
        sizes = len(set(series)) > 1 and all(type(one) is int and one > 0 for one in series)
        axis = (self.extents.express(tuple(series)) or "") if sizes else ""
        if len(set(series)) > 1 and not axis:
            self.doubts.append(
                f"a list's number changes from call to call ({', '.join(map(str, series))}): {series[0]} is taken"
            )
        return axis or json.dumps(series[0])

    def _unseen(self, name: str, parameter: CParameter) -> str:
        form = form_of(self.text)
        if form != "plain" and "ScalarType" in parameter.type and not parameter.is_optional and not parameter.default:
            leader = next((self._name(*one) for one in self.order if one[0] == self.leader), self.leader)
            self.extent_of[name] = f"{leader}.scalar_type()"
            self.doubts.append(f"{name} is taken for the dtype of {leader} (build.binding)")
            return ""
        if form != "plain" and (
            parameter.is_optional
            or (parameter.default and not parameter.is_whole and not re.match(r"-?\.?\d", parameter.default))
        ):
            self.extent_of[name] = parameter.default or "std::nullopt"
            self.doubts.append(f"{name} is not given by the calls: it is {self.extent_of[name]} (build.binding)")
            return ""
        if parameter.is_tensor:
            if parameter.is_optional:
                self.doubts.append(f"{name} is optional, and the calls do not give it: it is left out")
                return ""
            if self._is_bound():
                self.doubts.append(f"{name} is a pointer that no call gives: it is null (build.binding)")
                self.extent_of[name] = "nullptr"
                return ""
            self.doubts.append(f"{name} is a tensor that no call gives: add it to the spec")
            return ""
        if name in self.extents.axes:
            return f"Size(name={name!r})"
        if parameter.is_whole and (axis := next((one for one in self.extents.axes if _alike(one, name)), None)):
            self.doubts.append(f"{name} is taken for the axis {axis}")
            return f"Size(name={axis!r})"
        if parameter.is_whole and (extent := self._extent(name)) and not parameter.default:
            self.doubts.append(f"{name} is taken for {extent}, by its name")
            if self._is_bound():
                self.extent_of[name] = extent.replace("//", "/")
                return ""
            if extent in self.extents.axes:
                return f"Size(name={extent!r})"
        default = re.fullmatch(r"(-?\d+(\.\d*)?(e-?\d+)?)f?|true|false", parameter.default)
        value = {"true": 1, "false": 0}.get(parameter.default, default[1] if default and default[1] else 0)
        self.unseen.append(name)
        kind = "int64_t" if parameter.is_whole else "double" if "double" in parameter.type else "float"
        small = {
            token.value
            for line in self.first.lines
            for token in line
            if isinstance(token, Number) and type(token.value) is float and 0 < token.value < 1e-2
        }
        if not default and _alike(name, "eps") and len(small) == 1:
            (value,) = small
            self.doubts.append(f"{name} is {value:g}, as in the steps of what is expected")
            self.guessed[value] = name
        elif not default:
            self.doubts.append(
                f"what {name} ({parameter.type}) is was not found out: it is the number {value} in the spec; it may be a size, Size(name=...)"
            )
        return f"Scalar(name={name!r}, ctype={kind!r}, value={value})"

    def _workloads(self, axes: dict[str, tuple[int, ...]], suffix: str) -> list[str]:
        found: dict[str, int] = {}
        anywhere = suffix == ".py" and "triton" not in self.text
        device = "" if anywhere else f", devices=({'cpu' if suffix == '.cpp' else 'cuda'!r},)"
        rows = []
        for at, call in enumerate(self.calls):
            sizes = {name: values[at] for name, values in axes.items()}
            key = f"axes={sizes!r}, dtype={self.series[at]!r}"
            elements = sum(tensor.numel() for tensor in call.tensors.values())
            if key not in found:
                found[key] = elements
                rows.append((elements, key))
        rows.sort(key=lambda one: one[0])
        if len(rows) > 3 * EACH:
            rows = [rows[at * len(rows) // (3 * EACH)] for at in range(3 * EACH)]
        lines = []
        for at, (_elements, key) in enumerate(rows):
            last = at == len(rows) - 1
            held_out = at % 3 == 1 and len(rows) > 2 and not last
            timed = held_out or at % 3 == 2 or len(rows) < 3 or at == 0 or last
            lines.append(
                f"Workload({key}{device}{', held_out=True' if held_out else '' if timed else ', timed=False'})"
            )
        if max(row[0] for row in rows) < 1 << 22:
            self.doubts.append(
                "the largest call is small (under 4 million elements): add the sizes that you really run to workloads"
            )
        return lines

    # --- reference.py ------------------------------------------------------------------------------------------------

    def _reference(self, names: dict[str, str]) -> None:
        import torch

        call = self.first
        inputs = [
            names[seen]
            for seen, _ in self.order
            if seen in call.tensors and (seen not in call.outputs or seen in call.both)
        ]
        scalars = [
            names[seen]
            for seen, _ in self.order
            if seen in call.numbers and self._is_scalar(seen) and names[seen] not in self.extent_of
        ]
        renamed = {seen: name for seen, name in names.items() if seen and seen != name}
        more: set[str] = set()
        if self.reference:
            body = self.reference.rpartition("\n\n")
            own, lines = body[0], body[2].splitlines()
            more = {names[seen] for seen in call.numbers if seen in names and names[seen] in self.extents.axes}
            given = {old: {*inputs} if old in call.tensors else {*more, *scalars} for old in renamed}
            held = {
                seen: one
                for seen, one in call.numbers.items()
                if one is None or isinstance(one, str | torch.dtype | tuple | list) or names.get(seen) in self.extent_of
            }
            lines = [
                *self._buffers(names, more),
                *(f"    {old} = {new}" for old, new in renamed.items() if new in given[old]),
                *(f"    {seen} = {self._held(seen, more)}" for seen in held),
                *lines,
            ]
            results = {names.get(name, name): name for name in call.outputs}
        else:
            own, lines, results = (
                "import torch",
                [],
                {names.get(name, name): value for name, value in call.results.items()},
            )
        if call.fault:
            self.doubts.append(f"{call.fault}: reference.py is to be written")
            lines = [f"    raise NotImplementedError({call.fault!r})"]
        elif not self.reference:
            lines = ["    " + self._line(at, names, more) for at in range(len(call.lines))]
            results = {name: names.get(value, value) for name, value in results.items()}
        same = [name for name, value in results.items() if value in inputs]
        axes = sorted(more - set(inputs) - set(scalars))
        head = [*inputs, *scalars, *(one for one in self.unseen if one not in scalars), *axes]
        text = f"{own}\n"
        if any(WIDE + "(" in line for line in lines):
            text += WIDE_SOURCE
        text += f"\n\ndef reference({', '.join(dict.fromkeys(head))}):\n" + "\n".join(lines)
        text += (
            "\n    return {"
            + ", ".join(f"{name!r}: {value}{'.clone()' if name in same else ''}" for name, value in results.items())
            + "}\n"
        )
        (self.to / "reference.py").write_text(text)

    def _buffers(self, names: dict[str, str], more: set[str]) -> Iterator[str]:
        """Lines that make the tensors which the function of what is right is handed to write into."""
        call = self.first
        inputs = [seen for seen, _ in self.order if seen in call.tensors and seen not in call.outputs]
        lead = next((one for one in inputs if call.tensors[one].is_floating_point()), "")
        for seen in call.outputs:
            if seen in call.both or seen not in call.strides:
                continue
            shape = self.shapes[seen]
            more |= {word for one in shape for word in re.findall(r"[a-z_]\w*", one)}
            floats = call.tensors[seen].is_floating_point()
            dtype = f"{names[lead]}.dtype" if floats and lead else f"torch.{_dtype(call.tensors[seen])}"
            beside = f", device={names[inputs[0]]}.device" if inputs else ""
            yield f"    {seen} = torch.empty(({', '.join(shape)},), dtype={dtype}{beside})"

    def _held(self, seen: str, more: set[str]) -> str:
        """Python of what no spec holds, in the reference: dtypes and sizes as they go with the workload's."""
        import torch

        values = [call.numbers[seen] for call in self.calls]
        first, kinds = values[0], [str(one).removeprefix("torch.") for one in values]
        if isinstance(first, torch.dtype) and kinds == self.series and len(set(kinds)) > 1:
            more.add("dtype")
            return "dtype"
        if (
            isinstance(first, tuple | list)
            and all(type(one) is int for one in first)
            and len({len(one) for one in values}) == 1
        ):
            entries = [self._entry(list(series)) for series in zip(*values, strict=True)]
            more |= {word for one in entries for word in re.findall(r"[a-z_]\w*", one)}
            return f"[{', '.join(entries)}]"
        return repr(first)

    def _is_scalar(self, seen: str) -> bool:
        value = self.first.numbers[seen]
        return type(value) in (int, float, bool) and axis_name(seen) not in self.extents.axes

    def _line(self, at: int, names: dict[str, str], more: set[str]) -> str:
        """One line of the steps, its numbers as sizes and its dtypes as the workload's where they change with these."""
        pieces = []
        lines = [call.lines[at] for call in self.calls]
        for place, token in enumerate(lines[0]):
            others = [line[place] for line in lines]
            if isinstance(token, Number):
                pieces.append(self._expressed([one.value for one in others if isinstance(one, Number)], more))
            elif isinstance(token, DtypeOf):
                kinds = [one.name for one in others if isinstance(one, DtypeOf)]
                leader = names.get(self.leader, self.leader)
                usable = self.leader in self.first.tensors and (
                    self.leader not in self.first.outputs or self.leader in self.first.both
                )
                pieces.append(f"{leader}.dtype" if kinds == self.series and usable else f"torch.{kinds[0]}")
            else:
                pieces.append(
                    re.sub(
                        r"^\w+$|(?<![\w.'])\w+",
                        lambda word: names.get(word[0], word[0]) if word[0] in self.first.tensors else word[0],
                        token,
                    )
                )
        return "".join(pieces)

    def _expressed(self, values: list[Any], more: set[str]) -> str:
        first = values[0]
        if first in self.guessed:
            return self.guessed[first]
        for name, known in self.first.numbers.items():
            if type(known) is float and type(first) is float and known == first:
                return axis_name(next((self._name(seen, one) for seen, one in self.order if seen == name), name))
        if (
            type(first) is int
            and first > 1
            and len({type(one) for one in values}) == 1
            and (
                len(set(values)) > 1
                or (first >= 16 and len(self.calls) == 1)
                or tuple(values) in self.extents.axes.values()
            )
        ):
            found = self.extents.express(tuple(values))
            if found is not None:
                more |= set(re.findall(r"[a-z_]\w*", found))
                return found
        if len(set(values)) > 1:
            self.doubts.append(
                f"a number of the reference changes from call to call ({', '.join(map(str, dict.fromkeys(values)))}): {first} stands in it"
            )
        return repr(first)


def _flat(names: Any) -> list[str]:
    return [found for one in names for found in _flat(one)] if isinstance(names, list) else [names]


def _same(one: str, other: str) -> bool:
    return axis_name(one) == axis_name(other)


def _alike(one: str, other: str) -> bool:
    """Whether engines use both names for one thing."""

    def plain(name: str) -> str:
        name = re.sub(r"^(d_|p_|ptr_)|(_ptr|_tensor|_data|_)$", "", axis_name(name))
        return ALIKE.get(name, name)

    return plain(one) == plain(other)


def dtype_in(form: str, dtype: str) -> str:
    """C++ of a dtype in that form of source; "" where it has none."""
    if form == "tvm_ffi":
        bits = re.search(r"\d+$", dtype)
        kind = (
            "kDLBfloat" if dtype == "bfloat16" else {"f": "kDLFloat", "i": "kDLInt", "u": "kDLUInt"}.get(dtype[0], "")
        )
        return f"DLDataType{{{kind}, {bits[0]}, 1}}" if bits and kind else ""
    scope = "torch::headeronly" if form == "stable" else "at"
    return f"{scope}::ScalarType::{SCALAR_TYPES[dtype]}" if dtype in SCALAR_TYPES else ""


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _stacked(tensors: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat([tensor.flatten().long() for tensor in tensors if tensor.numel()])
