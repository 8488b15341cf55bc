"""The arguments of the spec."""

from __future__ import annotations

import enum
import json
import math
import re
from typing import TYPE_CHECKING, Any

from graph.bringing.calls import Calls
from graph.bringing.names import COLUMNS, ELEMENTS, ROWS, alike, defines, dtype_in, dtype_name, stack_integers
from harness.backends import form_of
from harness.capture import distribution_of
from harness.capture.extents import axis_name
from harness.capture.signature import CParameter
from harness.capture.written import Number
from harness.farside.distributions import wide_enough
from kernels.spec import DTYPE_BYTES

if TYPE_CHECKING:
    import torch


NUMBER = r"\b(double|float|Scalar|half|bool|char|(\w*_)?b?float16\w*|\w*half|acc\w*_t|scalar_t|opmath_t)\b"
"""C++ of a number that is not whole."""
TELLING = 128
"""Elements of a tensor that show how it is distributed, at least."""


class SpecArguments(Calls):
    def _arguments(self) -> tuple[list[str], dict[str, str]]:
        """The spec's arguments as Python, and the calls' names -> the spec's."""
        self.find_dtypes()
        lines = []
        names = {seen: self.name_of(seen, parameter) for seen, parameter in self.order}
        given = [seen for seen in names if seen in self.first.tensors]
        written = {seen for seen, one in self.order if one is not None and one.is_tensor and not one.is_read_only}
        self.unread = [
            seen for seen in given if self.reference and seen in written - {*self.first.outputs} - self.first.read
        ]
        self.doubts += [
            f"what is right does not depend on {names[seen]}, and the kernel may write it: it is taken for a workspace"
            for seen in self.unread
        ]
        # All shapes first: an integer may stay below the extent of a tensor that comes behind it.
        self.shapes |= {seen: self._shape(seen, names[seen]) for seen in given}
        tensors = {seen: self._tensor(seen, names[seen]) for seen in given}
        self.extents_of = {names[seen]: shape for seen, shape in self.shapes.items()}
        for seen, parameter in self.order:
            name = self.name_of(seen, parameter)
            if seen in tensors:
                lines.append(tensors[seen])
            elif seen:
                lines.append(self._number(seen, name, parameter))
            else:
                assert parameter is not None
                lines.append(self._unseen(name, parameter))
        left = [
            name
            for name in (*self.first.tensors, *self.first.numbers)
            if name and name not in {*names, *self.first.left_away}
        ]
        for name in left:
            value = self.first.numbers.get(name)
            if name in self.first.tensors or (value is not None and type(value) in (int, float)):
                self.doubts.append(
                    f"{name}, which the calls give, is no parameter of {self.symbol} as far as names and places show"
                )
        lines = [line for line in lines if line]
        if self.taken is None or self.is_bound() or form_of(self.text) != "plain":
            # A candidate of plain C is called with sizes; the engine's own function is called without these.
            sizes = [f"Size(name={axis!r})" for axis in self.extents.axes]
            lines += [line for line in sizes if line not in lines]
        return lines, names

    def _shape(self, seen: str, name: str) -> tuple[str, ...]:
        tensors = [call.tensors[seen] for call in self.calls]
        return tuple(
            self.extents.take(f"{name}_{dim}", tuple(tensor.shape[dim] for tensor in tensors))
            for dim in range(tensors[0].dim())
        ) or ("1",)

    def _tensor(self, seen: str, name: str) -> str:
        tensors, shape = [call.tensors[seen] for call in self.calls], self.shapes[seen]
        role = (
            "inout"
            if seen in self.first.both and seen in self.first.outputs
            else "output"
            if seen in self.first.outputs
            else "workspace"
            if seen in self.unread
            else "input"
        )
        parts = [f"name={name!r}", f"role={role!r}", f"shape={shape!r}"]
        kinds = [dtype_name(tensor) for tensor in tensors]
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
        if role in ("input", "inout"):
            values = self._values(name, tensors)
            if tensors[0].is_floating_point() and any(bool(one.isposinf().any()) for one in map(wide_enough, tensors)):
                parts.append(f"values={(values or 'ordinary', 'infinities')!r}")  # -inf alone: a mask
            elif values:
                parts.append(f"values=({values!r},)")
        parameter = next((one for held, one in self.order if held == seen), None)
        if listed := self.list_of(seen):
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
        if tensors[0].is_floating_point():
            finite = [~wide_enough(one).isinf() for one in tensors]
            found = [
                distribution_of(one if bool(which.all()) else one[which])
                for one, which in zip(tensors, finite, strict=True)
            ]
            if all(one == "ordinary" for one in found):
                return ""
            told = [one for one, tensor in zip(found, tensors, strict=True) if tensor.numel() >= TELLING]
            usable = [one for one in told or found if one not in ("stored", "given", "among")]
            if len(usable) < len(told):
                wide = [wide_enough(one) for one in tensors]
                low, high = min(float(one.min()) for one in wide), max(float(one.max()) for one in wide)
                if not usable and low < high and low * high > 0 and math.isfinite(high - low):  # such as decays
                    self.doubts.append(
                        f"how {name} is distributed was not found out: it is drawn evenly from {low:.6g} to {high:.6g}"
                    )
                    return f"range:{low:.6g}:{high:.6g}"
                self.doubts.append(
                    f"how {name} is distributed was not found out: it is drawn as normal numbers (values, or a function of inputs.py)"
                )
            if usable and len({one.partition(":")[0] for one in usable}) == 1:
                return "" if usable[0] == "ordinary" else usable[0]
            return ""
        if tensors[0].dtype.is_complex or str(tensors[0].dtype) == "torch.bool":
            return "integers:0:2"
        low, high = (int(getattr(stack_integers(tensors), end)()) for end in ("min", "max"))
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
        # Such as periods, of which each call has the same: they have nothing to do with an axis that changes.
        still = len(set(tops)) == 1 and low > 0
        fitting = [
            axis
            for axis, sizes in axes.items()
            if all(top < size for top, size in zip(tops, sizes, strict=True)) and not (still and len(set(sizes)) > 1)
        ]
        fitting.sort(key=lambda axis: max(size - top for top, size in zip(tops, axes[axis], strict=True)))
        distinct = all(len(one.unique()) == len(one) for one in flat) and max(map(len, flat)) > 1
        if tensors[0].itemsize == 1:
            whole = low == (0 if dtype_name(tensors[0]) == "uint8" else -128) and high - low == 255
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
        bits = 8 * tensors[0].itemsize
        if low < -(2 ** (bits - 2)) and high > 2 ** (bits - 2):  # masks, packed numbers
            return "bits"
        self.doubts.append(f"{name} holds integers from {low} to {high}: what bounds them was not found out")
        return f"integers:{low}:{high + 1}"

    def _number(self, seen: str, name: str, parameter: CParameter | None) -> str:
        values = [call.numbers[seen] for call in self.calls]
        first = values[0]
        if parameter is not None and (text := self._written(values, parameter)):
            self.extent_of[name] = text
            return ""
        if self.taken is None and defines(self.text, self.symbol) and (text := self._in_python(values)):
            self.held[seen] = text
            self.doubts.append(
                f"{seen} is {text} in each call, which a spec cannot hold: baseline.py calls the file's {self.symbol} with it"
            )
            return ""
        if type(first) is int and name in self.extents.axes:
            return f"Size(name={name!r})"
        if len(set(map(repr, values))) > 1:
            if all(type(value) is int and value > 0 for value in values):
                self.extents.axes[name] = tuple(values)
                return f"Size(name={name!r})"
            first = False if type(first) is bool else first
            self.doubts.append(
                f"{name} changes from call to call ({', '.join(dict.fromkeys(map(str, values)))}): {first} is taken"
            )
        if type(first) in (int, bool, float):
            whole = type(first) is not float
            first = 0 if "pdl" in name else first  # the caller's choice: kernels.md
            kind = "int64_t" if whole else "double" if parameter is not None and "double" in parameter.type else "float"
            return f"Scalar(name={name!r}, ctype={kind!r}, value={first if type(first) is float else int(first)})"
        if first is None:
            self.doubts.append(
                f"{name} is None in the calls: what the function then gets was not found out: {self._how_to_give_more()}"
            )
        else:
            self.doubts.append(
                f"{name} is {' '.join(repr(first).split())[:100]}, which a spec cannot hold: {self._how_to_give_more()}"
            )
        return ""

    def _how_to_give_more(self) -> str:
        if self.taken is not None:
            return "bind a call (build.binding)"
        return f"name by --symbol a function of yours that calls {self.symbol} with it, in a file that imports it"

    def _in_python(self, values: list[Any]) -> str:
        """Python of a dtype, a text or a list of numbers, by the tensors where they change with these; "" where it is another or not found out."""
        import torch

        first, is_same = values[0], len(set(map(repr, values))) == 1
        if isinstance(first, torch.dtype):
            kinds = [str(one).removeprefix("torch.") for one in values]
            return str(first) if is_same else f"{axis_name(self.leader)}.dtype" if kinds == self.series else ""
        if isinstance(first, str):
            return repr(first) if is_same else ""
        if not isinstance(first, tuple | list) or len({len(one) for one in values}) > 1:
            return ""
        entries = []
        for series in zip(*values, strict=True):
            places = [
                f"{axis_name(seen)}.shape[{dim}]"
                for seen, tensor in self.first.tensors.items()
                for dim in range(tensor.dim())
                if seen not in self.first.outputs
                and tuple(one.tensors[seen].shape[dim] for one in self.calls) == series
            ]
            if any(type(one) not in (int, float, bool) for one in series) or (len(set(series)) > 1 and not places):
                return ""
            entries.append(repr(series[0]) if len(set(series)) == 1 else places[0])
        return f"[{', '.join(entries)}]" if isinstance(first, list) else f"({''.join(f'{one}, ' for one in entries)})"

    def _written(self, values: list[Any], parameter: CParameter) -> str:
        """C++ of what no spec holds: a dtype, a text, a list of numbers, one of an enumeration, nothing. "" where it is another, or plain C."""
        import torch

        first, form = values[0], form_of(self.text)
        first = first.value if isinstance(first, enum.Enum) else first
        named = re.sub(r"\bconst\b|&", "", parameter.type).strip()
        known = parameter.is_whole or parameter.is_tensor or re.search(NUMBER, named)
        if (
            type(first) is int
            and not known
            and re.fullmatch(r"(enum )?[A-Za-z_][\w:]*", named)
            and self.source.suffix != ".c"
        ):
            return f"static_cast<{named}>({first})"  # an enumeration
        if form == "plain" and not parameter.is_text:
            return ""
        if isinstance(first, torch.dtype):
            kinds = [str(one).removeprefix("torch.") for one in values]
            if kinds == self.series and self.leader in self.first.tensors and len(set(kinds)) > 1:
                leader = next((self.name_of(*one) for one in self.order if one[0] == self.leader), self.leader)
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
            return "{" + ", ".join(self.entry_of(list(series)) for series in zip(*values, strict=True)) + "}"
        return ""

    def entry_of(self, series: list[Any]) -> str:
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
            leader = next((self.name_of(*one) for one in self.order if one[0] == self.leader), self.leader)
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
        if parameter.is_text:
            extents = self.extents_of.get(re.sub(r"_(dims|shape|sizes?)$", "", name), ())
            text = parameter.default or "{" + ", ".join(extents) + "}"
            self.extent_of[name] = text
            self.doubts.append(f"{name} ({parameter.type}) is not given by the calls: it is {text} (build.binding)")
            return ""
        kind = re.sub(r"\bconst\b|&", "", parameter.type).strip()
        types = self.taken.template if self.taken is not None else ()
        is_struct = re.fullmatch(r"[A-Za-z_][\w:]*", kind) and not re.search(NUMBER, kind) and kind not in types
        if (
            is_struct
            and not (parameter.is_tensor or parameter.is_whole or self.source.suffix == ".c")
            and (form != "plain" or self.is_bound())
        ):
            self.extent_of[name] = text = parameter.default or f"{kind}{{}}"
            self.doubts.append(
                f"{name} ({parameter.type}) is not given by the calls: it is {text}; write what the engine gives (build.binding)"
            )
            return ""
        if parameter.is_tensor:
            if parameter.is_optional:
                self.doubts.append(f"{name} is optional, and the calls do not give it: it is left out")
                return ""
            if self.is_bound():
                self.doubts.append(f"{name} is a pointer that no call gives: it is null (build.binding)")
                self.extent_of[name] = "nullptr"
                return ""
            self.doubts.append(f"{name} is a tensor that no call gives: add it to the spec")
            return ""
        if name in self.extents.axes:
            return f"Size(name={name!r})"
        if parameter.is_whole and (axis := next((one for one in self.extents.axes if alike(one, name)), None)):
            self.doubts.append(f"{name} is taken for the axis {axis}")
            return f"Size(name={axis!r})"
        if parameter.is_whole and (extent := self._extent(name)) and not parameter.default:
            self.doubts.append(f"{name} is taken for {extent}, by its name")
            if self.is_bound():
                self.extent_of[name] = extent.replace("//", "/")
                return ""
            if extent in self.extents.axes:
                return f"Size(name={extent!r})"
        default = re.fullmatch(r"(-?\d+(\.\d*)?(e-?\d+)?)f?|true|false", parameter.default)
        value = {"true": 1, "false": 0}.get(parameter.default, default[1] if default and default[1] else 0)
        self.unseen.append(name)
        number = "int64_t" if parameter.is_whole else "double" if "double" in parameter.type else "float"
        small = {
            token.value
            for line in self.first.lines
            for token in line
            if isinstance(token, Number) and type(token.value) is float and 0 < token.value < 1e-2
        }
        if not default and alike(name, "eps") and len(small) == 1:
            (value,) = small
            self.doubts.append(f"{name} is {value:g}, as in the steps of what is expected")
            self.guessed[value] = name
        elif not default:
            self.doubts.append(
                f"what {name} ({parameter.type}) is was not found out: it is the number {value} in the spec; it may be a size, Size(name=...)"
            )
        return f"Scalar(name={name!r}, ctype={number!r}, value={value})"

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
