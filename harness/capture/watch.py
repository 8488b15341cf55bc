"""What a test of an engine calls a kernel with, what it compares the outputs with, and how that was computed.

A test runs as it is: where the engine is not installed its modules are stand-ins, and where no GPU is here its tensors are the CPU's. Of the kernel's
call the arguments are seen, and every operator of torch before and after it, so that the steps from the inputs to what the test
expects can be written down as a reference.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from harness.capture.standins import (
    EngineImports,
    StandIn,
    StandInFunction,
    StandInPart,
    StandInResult,
    importable,
    is_of_checkout,
    list_imports,
)

if TYPE_CHECKING:
    import torch

MOST_STEPS = 400
"""Of torch's operators between the inputs and one expected output."""


@dataclass
class KernelCall:
    """One call of the kernel, as it was before the call."""

    name: str
    arguments: dict[str, Any]
    """Parameter, or the caller's variable where it has no name of its own -> what was given: tensors are the caller's own."""
    before: dict[str, torch.Tensor]
    """Tensor argument -> a copy of what it held."""
    empty: set[str]
    """Tensor arguments that held nothing yet."""
    versions: dict[str, int]
    """Tensor argument -> how often it had been changed in place."""
    when: int
    """After how many calls of torch."""
    sizes: dict[str, int]
    """Whole numbers that the test knows by name."""
    expected: list[tuple[str | int, Any]] = field(default_factory=list)
    """(argument that the kernel wrote, or place in what it returned; the tensor that the test compares it with)."""
    returned: Any = None
    ran: bool = False
    """Whether the kernel itself was called."""
    differences: list[tuple[str | int, Any]] = field(default_factory=list)
    """As `expected`, of tensors that were subtracted, which count where nothing else is compared."""
    with_numbers: bool = False
    """Whether the test compares it with a list."""


@dataclass(frozen=True)
class TorchCall:
    """One call of torch."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    named: dict[str, Any]
    at: int | None
    """Place in what it returned, where that was a tuple."""
    versions: dict[int, int]
    """id of a tensor that it was given -> how often that had been changed in place by then."""
    changes: bool
    """Whether it changes its first argument in place."""
    when: int
    """Which of all calls it is."""


class CallWatcher:
    """Sees calls of one function in code that runs under `watching()`. Not for threads."""

    def __init__(self, wanted: str, file: Path | None = None) -> None:
        """`wanted`: the function's own name; a name with dots must fit from the end. `file`: the one of Python that defines it."""
        self.wanted, self.file = wanted, file
        self.calls: list[KernelCall] = []
        self.steps: dict[tuple[int, int], TorchCall] = {}
        """(id of a tensor, how often it had been changed in place) -> how it came to be so."""
        self.versions: dict[int, int] = {}
        self.views: dict[int, set[int]] = {}
        """Address of a storage -> ids of tensors in it."""
        self.spoiled: dict[int, tuple[Any, int, int]] = {}
        """id of a tensor that was changed through another one -> (that one, how often that had been changed then, after so many calls of torch)."""
        self.count = 0
        self.held: list[Any] = []
        """Keeps ids from being used again."""
        self.empty: set[int] = set()
        self.operators: dict[str, Callable[..., Any]] = {}
        """Operator that the engine registers -> its function in Python."""
        self.arrays: dict[int, Any] = {}
        """id of an array -> the tensor that it was."""
        self.others: dict[str, int] = {}
        """Stand-ins that were called with a tensor and are not the one -> how often."""
        self.stood_in: list[str] = []
        self.failed: dict[str, str] = {}
        """Modules of the checkout that failed while they were imported -> by what."""
        self.pretends = False
        self.inside = False
        """Whether the kernel's own function runs."""

    def is_wanted(self, name: str) -> bool:
        return name == self.wanted or name.endswith(f".{self.wanted}")

    def called(self, name: str, given: tuple[Any, ...], named: dict[str, Any], frame: types.FrameType) -> Any:
        import torch

        if not any(isinstance(one, torch.Tensor) for one in (*given, *named.values())):
            return StandInResult(KernelCall(name, {}, {}, set(), {}, 0, {}), self) if not self.is_wanted(name) else None
        if not self.is_wanted(name):
            self.others[name] = self.others.get(name, 0) + 1
            return StandInResult(KernelCall(name, {}, {}, set(), {}, 0, {}))
        variables = {id(value): key for key, value in frame.f_locals.items() if isinstance(value, torch.Tensor)}
        arguments: dict[str, Any] = {}
        numbers = {key: value for key, value in frame.f_locals.items() if type(value) in (int, float, bool)}
        for at, value in enumerate(given):
            known = variables.get(id(value)) if isinstance(value, torch.Tensor) else None
            if known is None and type(value) in (int, float, bool):
                known = next((k for k, v in numbers.items() if v == value and type(v) is type(value)), None)
            arguments[known if known and known not in arguments else f"argument_{at}"] = value
        return self.record(name, {**arguments, **named}, frame)

    def record(self, name: str, arguments: dict[str, Any], frame: types.FrameType | None) -> StandInResult:
        import torch

        tensors = {key: value for key, value in arguments.items() if isinstance(value, torch.Tensor)}
        sizes: dict[str, int] = {}
        while frame is not None and len(sizes) < 64:
            for key, value in frame.f_locals.items():
                if type(value) is int and value > 0:
                    sizes.setdefault(key, value)
            if frame.f_code.co_name.startswith("test"):
                break
            frame = frame.f_back
        call = KernelCall(
            name, arguments, {key: value.detach().clone() for key, value in tensors.items()},
            {key for key, value in tensors.items() if value.untyped_storage().data_ptr() in self.empty},
            {key: self.versions.get(id(value), 0) for key, value in tensors.items()}, self.count, sizes,
        )  # fmt: skip
        self.calls.append(call)
        self.held += [call, *tensors.values()]
        call.returned = StandInResult(call)
        return call.returned

    def compared(self, one: Any, other: Any) -> bool:
        """A test compares two values; True where one of them is the kernel's."""
        for mine, expected in ((one, other), (other, one)):
            found = self._whose(mine)
            returned = isinstance(mine, StandInResult)  # then the other may well be looked up in an argument
            if (
                found is None
                or isinstance(expected, StandInResult)
                or (not returned and self._whose(expected) is not None)
            ):
                continue
            call, place = found
            if all(place != known for known, _ in call.expected):
                call.expected.append((place, expected))
                self.held.append(expected)
            return True
        return self._whose(one) is not None

    def _whose(self, value: Any) -> tuple[KernelCall, str | int] | None:
        import torch

        if isinstance(value, StandInPart):
            return value._call, value._at
        if isinstance(value, StandInResult):
            return value._call, 0
        if not isinstance(value, torch.Tensor):
            return None
        for _ in range(8):  # views and casts of what the kernel wrote
            for call in reversed(self.calls):
                for name, tensor in call.arguments.items():
                    if isinstance(tensor, torch.Tensor) and _same_memory(tensor, value):
                        return call, name
                returned = call.returned if isinstance(call.returned, tuple | list) else (call.returned,)
                for at, tensor in enumerate(returned):
                    if isinstance(tensor, torch.Tensor) and _same_memory(tensor, value):
                        return call, at
            step = self.steps.get((id(value), 0))
            if step is not None and step.when <= min((call.when for call in self.calls), default=0):
                return None  # made before the kernel wrote anything
            first = step.given[0] if step is not None and step.given else None
            if step is None or not isinstance(first, torch.Tensor) or step.function.__name__ not in _LOOKS:
                return None
            value = first
        return None

    def step(self, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any], returned: Any) -> None:
        import torch

        self.held.append((given, named, returned))
        self.count += 1
        versions = {id(one): self.versions.get(id(one), 0) for one in tensors_in((given, named))}
        first = given[0] if given and isinstance(given[0], torch.Tensor) else None
        name = function.__name__
        if first is not None and (returned is first or name in ("__setitem__", "copy_")):
            place = id(first)
            if not (returned is first and not name.endswith("_")):  # such as contiguous() of one that is
                self.versions[place] = versions[place] + 1
                self.steps[place, versions[place] + 1] = TorchCall(
                    function, given, named, None, versions, True, self.count
                )
                for other in self.views.get(first.untyped_storage().data_ptr(), set()) - {place}:
                    self.spoiled[other] = (first, versions[place] + 1, self.count)
                self.spoiled.pop(place, None)
                self.empty.discard(first.untyped_storage().data_ptr())
            return
        several = isinstance(returned, tuple | list)
        for at, one in enumerate(returned if several else [returned]):
            if not isinstance(one, torch.Tensor):
                continue
            self.steps.setdefault(
                (id(one), 0), TorchCall(function, given, named, at if several else None, versions, False, self.count)
            )
            if one.layout == torch.strided:
                self.views.setdefault(one.untyped_storage().data_ptr(), set()).add(id(one))
        if "empty" in name and isinstance(returned, torch.Tensor):
            self.empty.add(returned.untyped_storage().data_ptr())

    def forget(self) -> None:
        """What was seen of operators and tensors: a test has ended, its calls were read."""
        for seen in (
            self.calls,
            self.steps,
            self.versions,
            self.views,
            self.spoiled,
            self.empty,
            self.arrays,
            self.held,
        ):
            seen.clear()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Operators, comparisons and calls are seen inside; without a GPU its name means the CPU."""
        import numpy
        import torch
        import torch._dynamo  # engines import it, which it cannot bear while other names stand for torch's own

        from harness.capture.pretended import (
            pretend_device,
            seeing,
            take_any_device,
            without_builders,
            without_launches,
        )

        self.pretends = not torch.cuda.is_available()
        with contextlib.ExitStack() as stack:
            if self.pretends:
                for place, name, value in (
                    *pretend_device(torch),
                    *take_any_device(torch),
                    *without_builders(self),
                    *without_launches(self),
                ):
                    if hasattr(place, name):
                        stack.enter_context(mock.patch.object(place, name, value))
            for place, name in (
                (torch.testing, "assert_close"),
                (torch, "allclose"),
                (torch, "equal"),
                (torch, "isclose"),
                *((numpy, name) for name in ("allclose", "array_equal")),
                *(
                    (numpy.testing, name)
                    for name in ("assert_allclose", "assert_array_equal", "assert_array_almost_equal", "assert_equal")
                ),
            ):
                stack.enter_context(mock.patch.object(place, name, self._comparing(getattr(place, name))))
            known = torch._ops._OpNamespace.__getattr__
            watcher = self

            def operator(namespace: Any, name: str) -> Any:
                if (own := self.operators.get(f"{namespace.name}::{name}")) is not None:
                    return own
                try:
                    return known(namespace, name)
                except AttributeError:
                    if name.startswith("__"):
                        raise
                    return StandInFunction(f"torch.ops.{namespace.name}.{name}", watcher)

            stack.enter_context(mock.patch.object(torch._ops._OpNamespace, "__getattr__", operator))
            stack.enter_context(seeing(self))
            yield

    def _comparing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def compare(*given: Any, **named: Any) -> Any:
            first = given[0] if given else named.get("actual", named.get("input"))
            second = given[1] if len(given) > 1 else named.get("expected", named.get("other"))
            first, second = (self.arrays.get(id(one), one) for one in (first, second))
            pairs = [(first, second)]
            if isinstance(first, tuple | list) and isinstance(second, tuple | list):
                pairs = list(zip(first, second, strict=False))
            theirs = [self.compared(*pair) for pair in pairs]
            return True if any(theirs) and self._stands_in() else function(*given, **named)

        return compare

    def _stands_in(self) -> bool:
        return any(not call.ran for call in self.calls)

    def taken_for_equal(self, name: str, given: tuple[Any, ...]) -> Any:
        """What a test makes of an output of the kernel's, which was not run, and of what it expects: as if both were equal. None of another operator."""
        import torch

        if name not in _DIFFERENCES or len(given) < 2 or not all(isinstance(one, torch.Tensor) for one in given[:2]):
            return None
        one, other = given[:2]
        if one.shape != other.shape or not self.calls or not self._stands_in():
            return None
        whose = [self._whose(one), self._whose(other)]
        if (whose[0] is None) == (whose[1] is None):
            return None
        found, expected = next((found, seen) for found, seen in zip(whose, (other, one), strict=True) if found)
        call, place = found
        if any(expected is value for value in call.arguments.values()) or (
            place in call.before and place not in call.empty
        ):
            return None  # it goes on with the output
        if all(place != known for known, _ in call.expected):
            call.expected.append((place, expected))
            self.held.append(expected)
        with torch._C.DisableTorchFunction():
            equal = _DIFFERENCES[name]
            same = torch.zeros_like(one) if equal is None else torch.full(one.shape, equal)
        self.held.append(same)
        return same

    def wrap(self, module: types.ModuleType) -> None:
        """A module of the checkout was imported: where it is the kernel's own, calls of the function are seen."""
        if self.file is None or not (getattr(module, "__file__", None) or "").endswith(".py"):
            return
        import torch

        own = vars(module).get(self.wanted)
        if Path(str(module.__file__)).resolve() != self.file.resolve():
            return
        if isinstance(own, type) and issubclass(own, torch.autograd.Function):
            own.forward = staticmethod(self._seen(own.forward, module))  # type: ignore[method-assign]
        elif isinstance(own, types.FunctionType):
            setattr(module, self.wanted, self._seen(own, module))

    def _seen(self, own: Any, module: types.ModuleType) -> Callable[..., Any]:
        """`own`, whose calls are recorded; of a torch.autograd.Function its `forward`, whose context is no argument."""
        signature, watcher = inspect.signature(own), self
        contexts = {name for name in list(signature.parameters)[:1] if name == "ctx"}

        @functools.wraps(own)
        def seen(*given: Any, **named: Any) -> Any:
            bound = signature.bind(*given, **named)
            bound.apply_defaults()
            arguments = {name: value for name, value in bound.arguments.items() if name not in contexts}
            if not tensors_in(list(arguments.values())) or watcher.inside:
                return own(*given, **named)
            stand_in = watcher.record(f"{module.__name__}.{watcher.wanted}", arguments, sys._getframe(1))
            call, watcher.inside = watcher.calls[-1], True
            call.ran = not watcher.pretends
            try:
                call.returned = own(*given, **named)
            except Exception:
                if call.ran:
                    raise
                return stand_in
            finally:
                watcher.inside = False
            return call.returned

        return seen

    @contextlib.contextmanager
    def standing_in(self, test: Path, how: str) -> Iterator[None]:
        """What the test imports is, inside, `parts`: the checkout's modules, and a stand-in for what is nowhere; `whole`: for what the engine expects to be
        nowhere, too; `engine`: for all of the checkout's but those for tests."""
        if how != "engine":
            imports = EngineImports(test, self, how == "whole")
            with imports.used():
                yield
            self.stood_in = sorted(name for name in imports.made if name.rpartition(".")[0] not in imports.made)
            self.failed = imports.failed
            return
        made: list[str] = []
        names = list_imports(test)
        own = {name for name in names if is_of_checkout(name, test)}
        for name in list(sys.modules):
            if name.partition(".")[0] in {one.partition(".")[0] for one in own}:
                del sys.modules[name]
        for name in names:
            if name not in own and importable(name):
                continue
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                outer = ".".join(parts[:end])
                if outer not in sys.modules:
                    sys.modules[outer] = StandIn(outer, self)
                    made.append(outer)
                if end > 1:
                    setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], sys.modules[outer])
        self.stood_in = sorted({name.partition(".")[0] for name in made})
        try:
            yield
        finally:
            for name in made:
                sys.modules.pop(name, None)


_DIFFERENCES: dict[str, bool | None] = {
    "sub": None, "__sub__": None, "__rsub__": None, "eq": True, "__eq__": True, "ne": False, "__ne__": False,
}  # fmt: skip
"""Operators by which tests compare two tensors -> what these make of equal ones; None for zeros."""
_LOOKS = frozenset(
    ("view", "reshape", "to", "float", "double", "half", "bfloat16", "contiguous", "flatten", "squeeze", "unsqueeze", "clone", "cpu", "detach",
     "__getitem__", "transpose", "permute", "view_as", "type")
)  # fmt: skip


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of a nest of tuples, lists and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for one in value for found in tensors_in(one)] if isinstance(value, tuple | list) else []


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
