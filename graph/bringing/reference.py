"""reference.py: the steps of what the test expects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from graph.bringing.arguments import SpecArguments
from graph.bringing.names import dtype_name
from harness.capture.extents import axis_name
from harness.capture.written import WIDE, WIDE_SOURCE, DtypeOf, Number, Token


class Reference(SpecArguments):
    def _reference(self, names: dict[str, str]) -> None:
        import torch

        call = self.first
        inputs = [
            names[seen]
            for seen, _ in self.order
            if seen in call.tensors and seen not in self.unread and (seen not in call.outputs or seen in call.both)
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
                if one is None
                or isinstance(one, str | torch.dtype | tuple | list)
                or seen not in names
                or names[seen] in self.extent_of
            }
            lines = [
                *self._buffers(names, more),
                *(f"    {seen} = None" for seen in self.unread),
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
        if not self.reference and not call.fault:
            self._look_at_unread(names)
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

    def _look_at_unread(self, names: dict[str, str]) -> None:
        """A fault where the test read integers of a tensor into Python, so that the steps hold one call's; a doubt for other inputs that no step reads."""
        call = self.first
        unread = [
            seen
            for seen, _ in self.order
            if seen in call.tensors and seen not in call.outputs and seen not in call.read
        ]
        for seen in unread:
            tensor = call.tensors[seen]
            places = {number for line in call.lines for number in _places_in(line)}
            if (
                not tensor.is_floating_point()
                and tensor.numel() > 1
                and places - {0, 1} - set(self.first.sizes.values())
            ):
                call.fault = f"the test reads {names[seen]} into Python and takes places by it, so that the steps hold one call's numbers"
                return
        if unread:
            self.doubts.append(
                f"no step of what the test expects reads {', '.join(names[seen] for seen in unread)}: look whether the kernel does"
            )

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
            dtype = f"{names[lead]}.dtype" if floats and lead else f"torch.{dtype_name(call.tensors[seen])}"
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
            entries = [self.entry_of(list(series)) for series in zip(*values, strict=True)]
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
        for seen, tensor in self.first.tensors.items():  # a scale that the test made a tensor of for the kernel
            held = [call.tensors[seen] for call in self.calls]
            if (
                type(first) is float
                and first not in (0.0, 1.0)
                and seen not in self.first.outputs
                and seen not in self.first.read
                and all(one.numel() == 1 and float(one) == value for one, value in zip(held, values, strict=True))
                and tensor.is_floating_point()
            ):
                parameter = next((one for name, one in self.order if name == seen), None)
                return f"{self.name_of(seen, parameter)}.reshape(())"
        if first in self.guessed:
            return self.guessed[first]
        for name, known in self.first.numbers.items():
            if type(known) is float and type(first) is float and known == first:
                return axis_name(next((self.name_of(seen, one) for seen, one in self.order if seen == name), name))
        if (
            all(type(one) is int and one > 0 for one in values)
            and max(values) > 1
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


def _places_in(line: list[Token]) -> Iterator[int]:
    """Whole numbers of a line that are an index or the end of a slice, as they were in the call."""
    depth = 0
    for token in line:
        if isinstance(token, Number):
            if depth and type(token.value) is int:
                yield token.value
        elif isinstance(token, str):
            depth = max(0, depth + token.count("[") - token.count("]"))
