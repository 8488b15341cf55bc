"""What a test of an engine calls a kernel with, what it compares the outputs with, and how that was computed.

A test runs as it is: where the engine is not installed its modules are stand-ins, and where no GPU is here its tensors are the CPU's. Of the kernel's
call the arguments are seen, and every operator of torch before and after it, so that the steps from the inputs to what the test
expects can be written down as a reference.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import torch

GPU = "cuda"
MOST_STEPS = 400
"""Of torch's operators between the inputs and one expected output."""


class StandInResult:
    """What a stand-in returned: any method, index or operator of it is it again, so a comparison shows whose it was."""

    def __init__(self, call: KernelCall, watcher: CallWatcher | None = None) -> None:
        """With a watcher it came of a call without tensors, such as a loader's: its attributes may be the kernel."""
        self._call, self._watcher = call, watcher

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if self._watcher is None else StandInFunction(f"{self._call.name}.{name}", self._watcher)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self if self._watcher is None else StandInFunction(self._call.name, self._watcher)(*given, **named)

    def __getitem__(self, at: Any) -> Any:
        return StandInPart(self._call, at) if type(at) is int else self

    def __iter__(self) -> Iterator[Any]:
        """As many as the caller's code unpacks."""
        frame = sys._getframe(1)
        count = frame.f_code.co_code[frame.f_lasti + 1]
        return iter([StandInPart(self._call, at) for at in range(count)])

    def __sub__(self, _other: Any) -> Any:
        return self

    __rsub__ = __add__ = __mul__ = __truediv__ = __sub__

    @classmethod
    def __torch_function__(cls, _function: Any, _kinds: Any, given: Any = (), named: Any = None) -> Any:
        return next(one for one in (*given, *(named or {}).values()) if isinstance(one, StandInResult))


class StandInPart(StandInResult):
    """One of several that a stand-in returned."""

    def __init__(self, call: KernelCall, at: int) -> None:
        super().__init__(call)
        self._at = at

    def __getitem__(self, _at: Any) -> Any:
        return self


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
    sizes: dict[str, int]
    """Whole numbers that the test knows by name."""
    expected: list[tuple[str | int, Any]] = field(default_factory=list)
    """(argument that the kernel wrote, or place in what it returned; the tensor that the test compares it with)."""
    returned: Any = None
    label: str = ""


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


class StandIn(types.ModuleType):
    """A module that is not installed."""

    def __init__(self, name: str, watcher: CallWatcher) -> None:
        super().__init__(name)
        self._watcher = watcher
        self.__path__ = _folders_of(name)  # modules of it that need the rest not are themselves
        self.__file__ = f"<{name} is not installed>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = StandInFunction(f"{self.__name__}.{name}", self._watcher)
        setattr(self, name, made)
        return made


class StandInFunction:
    """A name of a module that is not installed; a call of the one that is wanted is the kernel's."""

    def __init__(self, name: str, watcher: CallWatcher) -> None:
        self._name, self._watcher = name, watcher
        self.__name__ = name.rpartition(".")[2]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandInFunction(f"{self._name}.{name}", self._watcher)

    def __call__(self, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and isinstance(given[0], types.FunctionType | type):
            return given[0]  # a decorator
        return self._watcher.called(self._name, given, named, sys._getframe(1))


class CallWatcher:
    """Sees calls of one function in code that runs under `watching()`. Not for threads."""

    def __init__(self, wanted: str) -> None:
        """`wanted`: the function's own name; a name with dots must fit from the end."""
        self.wanted = wanted
        self.calls: list[KernelCall] = []
        self.steps: dict[tuple[int, int], TorchCall] = {}
        """(id of a tensor, how often it had been changed in place) -> how it came to be so."""
        self.versions: dict[int, int] = {}
        self.views: dict[int, set[int]] = {}
        """Address of a storage -> ids of tensors in it."""
        self.spoiled: set[int] = set()
        """ids of tensors that were changed through another tensor."""
        self.held: list[Any] = []
        """Keeps ids from being used again."""
        self.empty: set[int] = set()
        self.others: dict[str, int] = {}
        """Stand-ins that were called with a tensor and are not the one -> how often."""
        self.stood_in: list[str] = []
        self.pretends = False

    def is_wanted(self, name: str) -> bool:
        return name == self.wanted or name.endswith(f".{self.wanted}")

    def called(self, name: str, given: tuple[Any, ...], named: dict[str, Any], frame: types.FrameType) -> Any:
        import torch

        if not any(isinstance(one, torch.Tensor) for one in (*given, *named.values())):
            return StandInResult(KernelCall(name, {}, {}, set(), {}), self) if not self.is_wanted(name) else None
        if not self.is_wanted(name):
            self.others[name] = self.others.get(name, 0) + 1
            return StandInResult(KernelCall(name, {}, {}, set(), {}))
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
            {key for key, value in tensors.items() if value.untyped_storage().data_ptr() in self.empty}, sizes,
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
            step = self.steps.get((id(value), 0))
            first = step.given[0] if step is not None and step.given else None
            if step is None or not isinstance(first, torch.Tensor) or step.function.__name__ not in _LOOKS:
                return None
            value = first
        return None

    def step(self, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any], returned: Any) -> None:
        import torch

        self.held.append((given, named, returned))
        versions = {id(one): self.versions.get(id(one), 0) for one in tensors_in((given, named))}
        first = given[0] if given and isinstance(given[0], torch.Tensor) else None
        name = function.__name__
        if first is not None and (returned is first or name in ("__setitem__", "copy_")):
            place = id(first)
            if not (returned is first and not name.endswith("_")):  # such as contiguous() of one that is
                self.versions[place] = versions[place] + 1
                self.steps[place, versions[place] + 1] = TorchCall(function, given, named, None, versions, True)
                self.spoiled |= self.views.get(first.untyped_storage().data_ptr(), set()) - {place}
            return
        several = isinstance(returned, tuple | list)
        for at, one in enumerate(returned if several else [returned]):
            if not isinstance(one, torch.Tensor):
                continue
            self.steps.setdefault(
                (id(one), 0), TorchCall(function, given, named, at if several else None, versions, False)
            )
            if one.layout == torch.strided:
                self.views.setdefault(one.untyped_storage().data_ptr(), set()).add(id(one))
        if "empty" in name and isinstance(returned, torch.Tensor):
            self.empty.add(returned.untyped_storage().data_ptr())

    def forget(self) -> None:
        """What was seen of operators and tensors: a test has ended, its calls were read."""
        for seen in (self.calls, self.steps, self.versions, self.views, self.spoiled, self.empty, self.held):
            seen.clear()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Operators, comparisons and calls are seen inside; without a GPU its name means the CPU."""
        import torch

        self.pretends = not torch.cuda.is_available()
        with contextlib.ExitStack() as stack:
            if self.pretends:
                for place, name, value in _pretended(torch):
                    if hasattr(place, name):
                        stack.enter_context(mock.patch.object(place, name, value))
            for place, name in (
                (torch.testing, "assert_close"),
                (torch, "allclose"),
                (torch, "equal"),
                (torch, "isclose"),
            ):
                stack.enter_context(mock.patch.object(place, name, self._comparing(getattr(place, name))))
            known = torch._ops._OpNamespace.__getattr__
            watcher = self

            def operator(namespace: Any, name: str) -> Any:
                try:
                    return known(namespace, name)
                except AttributeError:
                    if name.startswith("__"):
                        raise
                    return StandInFunction(f"torch.ops.{namespace.name}.{name}", watcher)

            stack.enter_context(mock.patch.object(torch._ops._OpNamespace, "__getattr__", operator))
            stack.enter_context(_mode(self))
            yield

    def _comparing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def compare(*given: Any, **named: Any) -> Any:
            first = given[0] if given else named.get("actual", named.get("input"))
            second = given[1] if len(given) > 1 else named.get("expected", named.get("other"))
            pairs = [(first, second)]
            if isinstance(first, tuple | list) and isinstance(second, tuple | list):
                pairs = list(zip(first, second, strict=False))
            theirs = [self.compared(*pair) for pair in pairs]
            return True if any(theirs) and self._stands_in() else function(*given, **named)

        return compare

    def _stands_in(self) -> bool:
        return any(isinstance(call.returned, StandInResult) for call in self.calls)

    @contextlib.contextmanager
    def standing_in(self, test: Path, engine: bool = False) -> Iterator[None]:
        """Modules that the test imports and that cannot be imported are stand-ins inside; with `engine` all that lie in its checkout are, but for those for tests."""
        made: list[str] = []
        names = list_imports(test)
        own = {name for name in names if engine and _is_of_checkout(name, test)}
        for name in list(sys.modules):
            if name.partition(".")[0] in {one.partition(".")[0] for one in own}:
                del sys.modules[name]
        for name in names:
            if name not in own and _importable(name):
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


def list_imports(test: Path) -> list[str]:
    """Modules that a file of Python imports, outer ones first."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names[node.module] = None
    return sorted(names)


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except BaseException:  # noqa: BLE001, an engine's module may fail in any way where its parts are not here
        return False
    return True


def _folders_of(name: str) -> list[str]:
    """Where a package's modules lie, without importing it; none where it is not there."""
    outer, _, _ = name.rpartition(".")
    places = getattr(sys.modules.get(outer), "__path__", []) if outer else None
    spec = importlib.machinery.PathFinder.find_spec(name, places)
    return list(spec.submodule_search_locations or []) if spec is not None else []


def _is_of_checkout(name: str, test: Path) -> bool:
    """Whether a module is of the checkout that holds the test, or of none here, and is not there for tests."""
    outer = name.partition(".")[0]
    if any(part.startswith("test") for part in name.split(".")) or outer in sys.stdlib_module_names:
        return False
    spec = importlib.machinery.PathFinder.find_spec(outer)
    places = [*(spec.submodule_search_locations or []), spec.origin] if spec is not None else []
    return any(
        Path(place).resolve() in (above / outer, above / f"{outer}.py")
        for place in places
        if place
        for above in test.parents
    )


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _pretended(torch: Any) -> list[tuple[Any, str, Any]]:
    """What of torch.cuda answers as on one Hopper where there is no GPU."""

    def nothing(*_given: Any, **_named: Any) -> None:
        return None

    facts = mock.Mock(multi_processor_count=132, major=9, minor=0, total_memory=80 << 30)
    facts.name = "NVIDIA H100"
    quiet = (
        "synchronize", "manual_seed", "manual_seed_all", "empty_cache", "set_device", "init", "reset_peak_memory_stats",
        "reset_max_memory_allocated",
    )  # fmt: skip
    return [
        *((torch.cuda, name, nothing) for name in quiet),
        (torch.cuda, "is_available", lambda: True), (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0), (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "get_device_properties", lambda *_: facts), (torch.cuda, "get_device_name", lambda *_: facts.name),
        (torch.version, "cuda", "13.0"), (torch, "set_default_device", nothing),
    ]  # fmt: skip


def _mode(watcher: CallWatcher) -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    def there(value: Any) -> Any:
        if isinstance(value, str) and (value == GPU or value.startswith(f"{GPU}:")):
            return "cpu"
        if isinstance(value, torch.device) and value.type == GPU:
            return torch.device("cpu")
        return "cpu" if isinstance(value, StandInResult | StandInFunction) else value

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, function: Any, kinds: Any, given: Any = (), named: Any = None) -> Any:
            named = dict(named or {})
            name = getattr(function, "__name__", "")
            if watcher.pretends:
                if name == "cuda":
                    return given[0]
                if name == "to":
                    given = (given[0], *("cpu" if type(one) is int else there(one) for one in given[1:]))
                if "device" in named:
                    named["device"] = there(named["device"])
                named.pop("pin_memory", None)
            returned = function(*given, **named)
            if tensors_in(returned) or name == "__setitem__":
                watcher.step(function, given, named, returned)
            return returned

    return Seeing()
