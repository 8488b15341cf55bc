"""The steps of torch from a kernel's inputs to what a test expects, written down as lines of Python with sizes as axes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

from harness.capture.source import CaptureError
from harness.capture.watch import MOST_STEPS, CallWatcher, KernelCall, TorchCall

if TYPE_CHECKING:
    import torch

MOST_DIMS = 4
"""Of an argument that may be a parameter with its extents in another order."""
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "div": "/", "floordiv": "//", "pow": "**", "matmul": "@", "and": "&", "or": "|", "xor": "^",
    "mod": "%", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
PLACES = frozenset(
    ("unsqueeze", "squeeze", "transpose", "permute", "sum", "mean", "amax", "amin", "max", "min", "softmax", "log_softmax", "cumsum", "cumprod", "flatten",
     "select", "unbind", "cat", "stack", "argsort", "sort", "argmax", "argmin", "any", "all", "logsumexp", "var", "std", "swapaxes", "movedim", "gather", "size",
     "index_select", "scatter_", "index_add_")
)  # fmt: skip
"""Functions whose whole numbers are places among the extents, and no sizes."""
WIDE = "wide"
"""What casts to float32 become, so that they narrow no float64."""
WIDE_SOURCE = """

def wide(tensor):
    return tensor if tensor.dtype is torch.float64 or tensor.is_complex() else tensor.to(torch.float32)
"""


@dataclass(frozen=True)
class Number:
    """A number of a call, which may be a size or one of the kernel's own numbers."""

    value: int | float


@dataclass(frozen=True)
class DtypeOf:
    """A dtype of a call, which may be the workload's."""

    name: str


Token = str | Number | DtypeOf
"""A piece of a line of Python."""


class Writer:
    """Writes what one call of the kernel is compared with. `lines` are in order, each a list of pieces."""

    def __init__(self, watcher: CallWatcher, call: KernelCall) -> None:
        self.watcher, self.call = watcher, call
        self.lines: list[list[Token]] = []
        self.known: dict[tuple[int, int], str] = {}
        self.used: set[str] = set()
        """Arguments that were needed."""

    def write(self, expected: torch.Tensor) -> str:
        """The name that holds it after the lines. Raises CaptureError where it does not come from the inputs alone."""
        return self._tensor(expected, self.watcher.versions.get(id(expected), 0), self.watcher.count + 1)

    def _tensor(self, tensor: torch.Tensor, version: int, when: int) -> str:
        """The name that holds a tensor as the call of torch of that number read it."""
        key = (id(tensor), version)
        through, its_version, changed = self.watcher.spoiled.get(id(tensor), (None, 0, when))
        if changed < when:
            return self._seen_through(tensor, through, its_version, when)
        if (known := self.known.get(key)) is not None:
            return known
        if (argument := self._argument(tensor, version)) is not None:
            self.used.add(argument)
            return argument
        if (seen := self._parameter(tensor, version)) is not None:
            self.known[key] = f"t{len(self.lines)}"
            self.lines.append([f"{self.known[key]} = ", *seen])
            return self.known[key]
        step = self.watcher.steps.get(key)
        if step is None:
            raise CaptureError("it depends on a tensor that neither the kernel is given nor torch has made in the test")
        if "rand" in step.function.__name__:
            raise CaptureError(f"it depends on random numbers that the kernel is not given ({step.function.__name__})")
        if step.changes and step.function.__name__ == "requires_grad_":  # no value of it changes
            self.known[key] = self._tensor(tensor, version - 1, step.when)
            return self.known[key]
        if len(self.lines) >= MOST_STEPS:
            raise CaptureError(f"it takes more than {MOST_STEPS} operators")
        line = self._change(tensor, version, step) if step.changes else self._made(step)
        name = f"t{len(self.lines)}"
        self.known[key] = name
        self.lines.append([f"{name} = ", *line])
        if step.changes:
            self.lines.append(self._changing(name, step))
        return name

    def _seen_through(self, tensor: torch.Tensor, view: Any, version: int, when: int) -> str:
        """A tensor that was changed through a view of it: what the view holds, where both lie the same in memory."""
        same = view.data_ptr() == tensor.data_ptr() and view.numel() == tensor.numel() and view.dtype == tensor.dtype
        if not same or not view.is_contiguous() or not tensor.is_contiguous():
            raise CaptureError("it was changed through a view of it")
        key = (-1 - id(tensor), version)
        if key not in self.known:
            value = self._tensor(view, version, when)
            self.known[key] = f"t{len(self.lines)}"
            sizes: list[Token] = [piece for size in tensor.shape for piece in (Number(size), ", ")]
            self.lines.append([f"{self.known[key]} = {value}.reshape(", *sizes[:-1], ")"])
        return self.known[key]

    def _argument(self, tensor: torch.Tensor, version: int) -> str | None:
        call = self.call
        for name, given in call.arguments.items():
            if given is tensor and version == call.versions.get(name, 0) and name not in call.empty:
                return name
        if version or self.watcher.versions.get(id(tensor), 0):
            return None
        for name, before in call.before.items():  # a copy that the test has made
            if (
                name not in call.empty
                and before.shape == tensor.shape
                and before.dtype == tensor.dtype
                and bool(before.eq(tensor).all())
            ):
                return name
        return None

    def _parameter(self, tensor: torch.Tensor, version: int) -> list[Token] | None:
        """A module's parameter, which is initialised in place, by the argument that is a copy of it, transposed or reshaped too."""
        import torch

        is_last = version == self.watcher.versions.get(id(tensor), 0)
        if not isinstance(tensor, torch.nn.Parameter) or tensor.numel() < 2 or not is_last:
            return None
        value = tensor.detach()
        for name, before in self.call.before.items():
            if name in self.call.empty or before.numel() != value.numel() or before.dim() > MOST_DIMS:
                continue
            for order in permutations(range(before.dim())):
                if torch.equal(before.permute(order).reshape(value.shape), value.to(before.dtype)):
                    self.used.add(name)
                    turned = "" if list(order) == sorted(order) else f".permute({', '.join(map(str, order))})"
                    sizes: list[Token] = [piece for size in value.shape for piece in (Number(size), ", ")]
                    shaped: list[Token] = (
                        [".reshape(", *sizes[:-1], ")"] if value.shape != before.permute(order).shape else []
                    )
                    return [f"{name}{turned}", *shaped]
        return None

    def _change(self, tensor: torch.Tensor, version: int, step: TorchCall) -> list[Token]:
        return [f"{self._tensor(tensor, version - 1, step.when)}.clone()"]

    def _changing(self, name: str, step: TorchCall) -> list[Token]:
        function = step.function.__name__
        rest = [self._value(one, step) for one in step.given[1:]]
        if function == "__setitem__":
            return [f"{name}[", *_flat(rest[0]), "] = ", *rest[1]]
        return [f"{name}.{function}(", *self._listed(rest, step), ")"]

    def _made(self, step: TorchCall) -> list[Token]:
        import torch

        function, name = step.function, step.function.__name__
        given = [self._value(one, step) for one in step.given]
        if name in PLACES:
            given = [[repr(one)] if type(one) is int else tokens for one, tokens in zip(step.given, given, strict=True)]
        end: list[Token] = [] if step.at is None else [f"[{step.at}]"]
        bare = name.strip("_")
        if name == "__get__":
            attribute = getattr(getattr(function, "__self__", None), "__name__", "")
            return [*given[0], f".{attribute}"]
        if (
            name in ("float", "to", "type", "as_tensor")
            and isinstance(step.given[0], torch.Tensor)
            and self._casts_to_float32(step)
        ):
            return [f"{WIDE}(", *given[0], ")"]
        if name == "__getitem__":
            return [*given[0], "[", *_flat(given[1]), "]", *end]
        if name.startswith("__") and len(given) == 2 and (sign := INFIX.get(bare) or INFIX.get(bare[1:])):
            first, second = given if bare in INFIX else (given[1], given[0])
            return ["(", *first, f" {sign} ", *second, ")"]
        if function in (
            getattr(torch.Tensor, name, None),
            getattr(torch.Tensor, f"__{name}__", None),
        ):  # ** is called pow
            return [*given[0], f".{name}(", *self._listed(given[1:], step), ")", *end]
        for place in ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft"):
            module: Any = torch
            for part in place.split(".")[1:]:
                module = getattr(module, part)
            known = getattr(module, name, None)
            if function is known or (known is not None and function is getattr(known, "__wrapped__", None)):
                return [f"{place}.{name}(", *self._listed(given, step), ")", *end]
        raise CaptureError(f"it is made by {getattr(function, '__module__', '')}.{name}, which cannot be written down")

    def _casts_to_float32(self, step: TorchCall) -> bool:
        import torch

        asked = [*step.given[1:], *step.named.values()]
        return step.function.__name__ == "float" or any(one is torch.float32 for one in asked)

    def _listed(self, given: list[list[Token]], step: TorchCall) -> list[Token]:
        lead = next((name for name in self.call.before if name not in self.call.empty), "")
        named: list[list[Token]] = [
            ["device=", f"{lead}.device"] if name == "device" and lead else [f"{name}=", *self._value(value, step)]
            for name, value in step.named.items()
            if value is not None
        ]
        found: list[Token] = []
        for one in (*given, *named):
            found += [", ", *one] if found else one
        return found

    def _value(self, value: Any, step: TorchCall) -> list[Token]:
        import torch

        if isinstance(value, torch.Tensor):
            return [self._tensor(value, step.versions.get(id(value), 0), step.when)]
        if isinstance(value, torch.dtype):
            return [DtypeOf(str(value).removeprefix("torch."))]
        if isinstance(value, torch.device):
            return [f"{value.type!r}"]
        if type(value) in (int, float):
            return [Number(value)]
        if value is Ellipsis:
            return ["..."]
        if isinstance(value, slice):
            ends = [value.start, value.stop, value.step]
            found: list[Token] = ["slice("]
            for at, end in enumerate(ends):
                found += [*([", "] if at else []), *self._value(end, step)]
            return [*found, ")"]
        if isinstance(value, tuple | list):
            found = ["("]
            for one in value:
                found += [*self._value(one, step), ", "]
            return [*found, ")"]
        if value is None or type(value) in (bool, str):
            return [repr(value)]
        raise CaptureError(f"it is made with a {type(value).__name__}, which cannot be written down")


def _flat(tokens: list[Token]) -> list[Token]:
    """An index without the parentheses of its tuple."""
    return tokens[1:-1] if tokens and tokens[0] == "(" and tokens[-1] == ")" else tokens
