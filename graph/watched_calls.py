"""Calls of a kernel as they happen in an engine's test, or as one expression makes them: `run.py bring` reads sizes, dtypes and values from them."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import inspect
import io
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from harness.capture.extents import axis_name
from harness.capture.source import CaptureError, write_standalone
from harness.capture.standins import BuildIsMissing
from harness.capture.watch import CallWatcher, KernelCall
from harness.capture.written import Token, Writer

if TYPE_CHECKING:
    import torch


MOST_CALLS = 48
"""Calls of a test that become cases, evenly taken (upper bound)."""
MOST_SECONDS = 120.0
WITH_NUMBERS = (
    "the test compares what it returns with numbers that stand in it: give a function of torch that computes what is right, "
    "and one that makes its arguments (module:function --args FILE.py:FUNCTION)"
)
REFERENCE_LIKE = r"(?i)ref(erence)?(_|$)|(^|_)(torch|native|naive|golden|gold|eager|py)(_|$)|expected"
"""Of names of functions that say what is right, and are no kernels."""


@dataclass
class SeenCall:
    """What one call of the kernel comes to."""

    tensors: dict[str, torch.Tensor]
    """Tensors as they were before the call, and the outputs as they are expected."""
    numbers: dict[str, Any]
    outputs: list[str]
    both: list[str]
    """Outputs that are inputs, too."""
    sizes: dict[str, int]
    lines: list[list[Token]] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    """Output -> the name that holds it after the lines."""
    fault: str = ""
    """Why the lines could not be written."""
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of tensors that the call was given, in elements."""
    expected: dict[str, torch.Tensor] = field(default_factory=dict)
    """Output -> what the test compares it with, or what the function of what is right made."""
    read: frozenset[str] = frozenset()
    """Tensors that the steps of what is expected read."""
    lists: dict[str, Any] = field(default_factory=dict)
    """Argument that is a list of tensors, or of such lists -> their names in the same form, by which `tensors` has them."""
    left_away: frozenset[str] = frozenset()
    """Parameters of the function of what is right that are what it says of them."""

    def form(self) -> Any:
        """What has to be alike in all calls of one kernel."""
        texts = [tuple("#" if not isinstance(token, str) else token for token in line) for line in self.lines]
        ranks = [(name, tensor.dim()) for name, tensor in self.tensors.items()]
        return ranks, tuple(self.numbers), tuple(texts), tuple(self.outputs), tuple(self.both)


def watch_test(
    target: str, wanted: str, file: Path | None = None, *, is_named: bool = False
) -> tuple[list[SeenCall], str, list[str]]:
    """Run the test, and say what its calls of the kernel were. `file`: the one of Python that defines it. `is_named`: no other
    name is taken for it. Raises CaptureError."""
    try:
        import pytest
    except ModuleNotFoundError:
        raise CaptureError("pytest is not installed, and it is to be run") from None
    path = Path(target.partition("::")[0]).resolve()
    if not path.is_file():
        raise CaptureError(f"{path} is not there")
    watcher, calls, faults = CallWatcher(wanted, file), list[SeenCall](), Counter[str]()

    class Plugin:
        started = time.monotonic()
        cases = 0

        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            self.cases = len(items)
            sized = {_sizes_of(item): item for item in reversed(items)}
            if len(items) > MOST_CALLS:
                items[:] = sorted(sized.values(), key=items.index)
            if len(items) > MOST_CALLS:
                items[:] = [items[at * len(items) // MOST_CALLS] for at in range(MOST_CALLS)]

        @pytest.hookimpl(trylast=True)
        def pytest_generate_tests(self, metafunc: Any) -> None:
            asked = {
                name for mark in metafunc.definition.iter_markers("parametrize") for name in _names_of(mark.args[0])
            }
            for name in metafunc.fixturenames:  # of a conftest.py that was left out
                if name not in asked and name != "request" and not metafunc._arg2fixturedefs.get(name):
                    metafunc.parametrize(name, [None], ids=[""])

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(self, item: Any) -> None:
            watcher.forget()  # not later: fixtures make inputs and what is expected
            item.own_markers = [mark for mark in item.own_markers if mark.name not in ("skip", "skipif")]
            if time.monotonic() - self.started > MOST_SECONDS:
                pytest.skip("enough was seen")

        @pytest.hookimpl(hookwrapper=True)
        def pytest_runtest_call(self, item: Any) -> Generator[None, Any, None]:
            outcome: Any = yield
            parameters = getattr(getattr(item, "callspec", None), "params", {})
            for call in watcher.calls:
                call.sizes |= {name: value for name, value in parameters.items() if type(value) is int and value > 0}
                call.expected = call.expected or list(dict(reversed(call.differences)).items())
                if call.expected:
                    calls.append(_understood(watcher, call))
                elif call.with_numbers:
                    faults[WITH_NUMBERS] += 1
            if outcome.excinfo is not None:
                kind, value, _ = outcome.excinfo
                faults[f"{kind.__name__}: {str(value).splitlines()[0][:200] if str(value) else ''}"] += 1
            watcher.forget()

    plugin = Plugin()
    alone = ["-n0"] if importlib.util.find_spec("xdist") is not None else []
    own = ["-o", "addopts="]  # the engine's may ask for plugins that are not here
    options = ["-q", "-p", "no:cacheprovider", *own, *alone, "--rootdir", str(path.parent)]
    first = ""
    more, waiting = (
        list[str](),
        ["parts", "whole", "engine"],
    )  # of an engine's own wrappers, which run here or fail, fewer each time
    while waiting and not calls:
        how = waiting.pop(0)
        faults.clear()
        watcher.others.clear()
        with (
            _first_on_the_path(path),
            watcher.watching(),
            watcher.standing_in(path, how),
            redirect_stdout(io.StringIO()) as said,
            redirect_stderr(said),
            _without_module_skips(pytest),
        ):
            plugin.cases, plugin.started = 0, time.monotonic()
            pytest.main([target, *options], [plugin])
            if not plugin.cases:  # the engine's conftest.py needs the engine
                pytest.main([target, *options, "--noconftest"], [plugin])
            if not plugin.cases:
                with BuildIsMissing(path):  # in front of who rewrites its asserts
                    pytest.main([target, *options, "--noconftest", "--assert=plain"], [plugin])
        for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) == str(path)]:
            del sys.modules[name]  # another file may have its name
        first = first or _refusal(watcher, faults, plugin.cases, said.getvalue())
        likely = [name for name in watcher.others if not re.search(REFERENCE_LIKE, name.rpartition(".")[2])]
        if not calls and len(likely) == 1 and watcher.wanted == wanted and not is_named:
            (watcher.wanted,) = likely
            more.append(f"the test calls {watcher.wanted} and no {wanted}: it is taken for the kernel")
            waiting.insert(0, how)
        elif not calls:
            watcher.wanted, more = wanted, []
    seen = watcher
    if not calls:
        raise CaptureError(f"no call of {wanted} was seen whose outputs the test compares{first}")
    if seen.stood_in:
        more.append(
            f"{', '.join(seen.stood_in[:6])}{' and others' if len(seen.stood_in) > 6 else ''} cannot be imported here: what the test calls of it was seen and not run"
        )
    for name, why in list(seen.failed.items())[:3]:
        more.append(f"{name} was imported in part ({why.splitlines()[0][:120]}): what it lacks was seen and not run")
    if seen.pretends:
        more.append("no GPU is here: the test ran on CPU tensors")
    if plugin.cases > MOST_CALLS:
        more.append(f"{MOST_CALLS} of the test's {plugin.cases} cases were looked at")
    more += [f"{count} cases ended early: {fault}" for fault, count in faults.most_common(2)]
    return calls, "", more


def _refusal(watcher: CallWatcher, faults: Counter[str], cases: int, said: str) -> str:
    """Why a run of the test showed no call, as far as it tells."""
    others = f"; it calls {', '.join(sorted(watcher.others))}: name one by --function" if watcher.others else ""
    why = f"; {faults.most_common(1)[0][0]}" if faults else ""
    if not cases:
        errors = [line[1:].strip() for line in said.splitlines() if line.startswith("E ")]
        why = f"; pytest says: {' '.join((errors[-1] if errors else said).split())[-300:]}"
    packages = sorted({name.partition(".")[0] for name in watcher.stood_in})
    missing = f"; not installed here: {', '.join(packages[:8])} (what is expected may need one)" if packages else ""
    failed = "".join(f"; {name} was imported in part ({why[:100]})" for name, why in list(watcher.failed.items())[:1])
    return f"{others}{why}{failed}{missing}"


def _names_of(text: Any) -> list[str]:
    """Of a mark's `parametrize`."""
    return [name.strip() for name in text.split(",")] if isinstance(text, str) else list(text)


@contextmanager
def _without_module_skips(pytest: Any) -> Iterator[None]:
    """A file that skips itself where the engine or a GPU is missing is run all the same inside."""
    own = pytest.skip

    def skip(*given: Any, **named: Any) -> None:
        if not named.get("allow_module_level"):
            own(*given, **named)

    skip.Exception = own.Exception  # type: ignore[attr-defined]
    with mock.patch.object(pytest, "skip", skip):
        yield


@contextmanager
def _first_on_the_path(test: Path) -> Iterator[None]:
    """Inside, the folder above a test's outermost package is looked into first, and no other package has that one's name."""
    packages = [above for above in list(test.parents)[:7] if (above / "__init__.py").is_file()]
    root = packages[-1].parent if packages else test.parent
    outer = test.relative_to(root).parts[0].removesuffix(".py")
    own = {name: sys.modules[name] for name in list(sys.modules) if name.partition(".")[0] == outer}
    for name in own:
        del sys.modules[name]
    marks = (".git", "pyproject.toml", "setup.py")
    checkout = next((str(above) for above in test.parents if any((above / mark).exists() for mark in marks)), str(root))
    places = [Path(checkout, below) for below in ("", "src", "python")]  # where engines keep their packages
    behind = [str(place) for place in places if place.is_dir() and not (place / "__init__.py").exists()]
    sys.path[:] = [str(root), *sys.path, *behind]
    try:
        yield
    finally:
        for place in (str(root), *behind):
            sys.path.remove(place)
        for name in [name for name in sys.modules if name.partition(".")[0] == outer]:
            del sys.modules[name]
        sys.modules.update(own)


def _sizes_of(item: Any) -> Any:
    """What of a test's parameters changes shapes and dtypes, as far as their types show."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return item.originalname, tuple(
        (name, str(value)) for name, value in parameters.items() if type(value) not in (bool, float)
    )


def _understood(watcher: CallWatcher, call: KernelCall) -> SeenCall:
    """A call of a test as tensors, numbers, outputs and the lines that make these."""
    import torch

    tensors = dict(call.before)
    numbers = {name: value for name, value in call.arguments.items() if not isinstance(value, torch.Tensor)}
    writer, results, fault, outputs = Writer(watcher, call), dict[str, str](), "", list[str]()
    right: dict[str, torch.Tensor] = {}
    for place, expected in sorted(_by_argument(call), key=lambda one: str(one[0])):
        name = place if isinstance(place, str) else "out" if not place else f"out_{place}"
        if isinstance(place, str) and expected.numel() == call.before[place].numel():
            expected_form = call.before[place]
        else:
            expected_form = _as_returned(call, place, expected.detach())
        if not isinstance(place, str):
            tensors[name] = expected_form
        outputs.append(name)
        right[name] = expected.detach()
        try:
            results[name] = writer.write(expected)
        except CaptureError as error:
            fault = fault or f"what {name} is compared with was not written down: {error}"
    # What was handed in with values and is compared as a whole is read only if the steps of what is expected read it.
    whole = {name for name, one in call.expected if name in tensors and one.numel() == tensors[name].numel()}
    whole = set() if fault else whole
    both = [
        name
        for name in outputs
        if name in writer.used or (name in call.before and name not in call.empty and name not in whole)
    ]
    for name in call.empty - set(outputs):
        if name in tensors:
            outputs.append(name)
            fault = fault or f"{name} is not compared with anything in the test"
    strides = {name: call.arguments[name].stride() for name in call.before}
    return SeenCall(
        tensors, numbers, outputs, both, call.sizes, [] if fault else writer.lines, results, fault, strides,
        right, frozenset(writer.used),
    )  # fmt: skip


def _by_argument(call: KernelCall) -> list[tuple[str | int, Any]]:
    """What the call is expected to write: what a wrapper that was not run returned is the empty tensor of that size that it was handed, if only one is."""
    if call.ran or any(isinstance(place, str) for place, _ in call.expected):
        return call.expected
    found = []
    for place, expected in call.expected:
        fits = [name for name in call.before if name in call.empty and call.before[name].shape == expected.shape]
        found.append((fits[0] if len(fits) == 1 else place, expected))
    names = [place for place, _ in found]
    return found if len(set(names)) == len(names) else call.expected


def _as_returned(call: KernelCall, place: str | int, expected: torch.Tensor) -> torch.Tensor:
    """What is expected in the dtype and shape of what the kernel's own function returned there, where that is known: tests compare casts."""
    import torch

    returned = call.returned if isinstance(call.returned, tuple | list) else (call.returned,)
    own = returned[place] if isinstance(place, int) and place < len(returned) else None
    if not isinstance(own, torch.Tensor) or own.numel() != expected.numel():
        return expected
    return expected.to(own.dtype).reshape(own.shape)


def watch_function(target: str, arguments: str, written: Sequence[str] = ()) -> tuple[list[SeenCall], str, list[str]]:
    """Call `module:function` (what is right) with the arguments that `file.py:name` makes. `written`: parameters in
    which the kernel may leave what is not handed back otherwise. Raises CaptureError."""
    import torch

    if not arguments:
        raise CaptureError("say by --args FILE.py:FUNCTION what it is called with")
    function, make = _named(target), _named(arguments)
    read, handed, more = set[str](), list[str](), list[str]()
    made = make()
    made = [made] if isinstance(made, tuple | dict) else list(made)
    calls: list[SeenCall] = []
    is_torchs = (
        target.partition(":")[0].partition(".")[0] == "torch"
    )  # called, not copied, and without what nobody gives
    signature = _signature_of(function, target, made)
    for one in made[:MOST_CALLS]:
        given, named = ((), one) if isinstance(one, dict) else (one if isinstance(one, tuple | list) else (one,), {})
        if len(given) == 2 and isinstance(given[0], tuple | list) and isinstance(given[1], dict):
            given, named = given
        try:
            bound = signature.bind(*given, **named)
        except TypeError as error:
            raise CaptureError(
                f"{arguments} makes arguments that {target} does not take ({error}): make a list of calls, of each a tuple, or a dictionary by the parameters' names"
            ) from None
        said = set(bound.arguments)
        if not is_torchs:
            bound.apply_defaults()
        tensors: dict[str, torch.Tensor] = {}
        lists: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            elif held := _named_tensors(name, value, tensors):
                lists[name] = held
        before = {name: value.detach().clone() for name, value in tensors.items()}
        versions = {name: value._version for name, value in tensors.items()}
        returned = function(*given, **named)
        changed = [name for name, value in tensors.items() if value._version != versions[name]]
        outputs = [
            value
            for value in (returned if isinstance(returned, tuple | list) else [returned])
            if isinstance(value, torch.Tensor)
        ]
        outputs = [value for value in outputs if all(value is not tensors[name] for name in changed)]
        names = ["out" if len(outputs) == 1 else f"out_{at}" for at in range(len(outputs))]
        in_place = [name for wanted in written for name in tensors if axis_name(name) == wanted]
        if (
            not changed
            and 0 < len(in_place) == len(outputs) == len(written)
            and all(
                (before[name].shape, before[name].dtype) == (one.shape, one.dtype)
                for name, one in zip(in_place, outputs, strict=True)
            )
        ):
            names = in_place
            more = [
                f"what {function.__name__} returns is taken for what the kernel writes in place: {', '.join(names)}"
            ]
        after = {name: tensors[name] for name in changed}
        both = [*changed, *(name for name in names if name in tensors)]  # it may return what the kernel writes in place
        again = functools.partial(_call_again, function, bound, lists, changed)
        read |= _find_read(again, before, [*after.values(), *outputs], before.keys() - read)
        if not calls:  # where all examples are of one kind, such as gradients that overflow, zeros may be of the other
            for name in before.keys() - read:
                others = {key: value if key == name else torch.zeros_like(value) for key, value in before.items()}
                made = again(others)
                if made is not None and not any(bool(one.isnan().any()) for one in made):
                    read |= _find_read(again, others, made, {name})
        handed = handed or changed
        numbers = {name: value for name, value in bound.arguments.items() if name not in tensors and name not in lists}
        calls.append(
            SeenCall(
                {**before, **dict(zip(names, outputs, strict=True)), **before}, numbers, [*changed, *names], both, {},
                strides={name: value.stride() for name, value in tensors.items()}, lists=lists, left_away=frozenset(bound.arguments.keys() - said),
                expected={name: tensors[name].detach().clone() for name in changed} | dict(zip(names, outputs, strict=True)),
            )
        )  # fmt: skip
    if not calls or not calls[0].outputs:
        raise CaptureError(f"{target} returned no tensor and changed none")
    for call in calls:
        call.both, call.read = [name for name in call.both if name in read], frozenset(read)
    called = target.replace(":", ".") if is_torchs else inspect.unwrap(function).__name__
    text = "import torch\n" if is_torchs else write_standalone(inspect.unwrap(function))
    first = calls[0]
    returns = [name for name in first.outputs if name not in handed]
    passed = ", ".join(
        f"{name}={name}" if parameter.kind is parameter.KEYWORD_ONLY else name
        for name, parameter in signature.parameters.items()
        if name in first.tensors or name in first.numbers or name in first.lists
    )
    lines = [f"    {name} = {name}.clone()" for name in first.both]
    lines += [f"    {name} = {str(held).replace(chr(39), '')}" for name, held in first.lists.items()]
    lines.append(f"    {', '.join(returns) + ' = ' if returns else ''}{called}({passed})")
    return calls, text + "\n\n" + "\n".join(lines), more


def _signature_of(function: Callable[..., Any], target: str, made: list[Any]) -> inspect.Signature:
    """Of a function that says none, such as torch's own, by the names of the first arguments that are made for it. Raises CaptureError."""
    try:
        return inspect.signature(function)
    except ValueError:
        if not made or not isinstance(made[0], dict):
            raise CaptureError(
                f"{target} does not say what its parameters are called: make dictionaries of arguments, with their names"
            ) from None
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in made[0]])


def _find_read(
    again: Callable[[dict[str, torch.Tensor]], list[torch.Tensor] | None], before: dict[str, torch.Tensor],
    made: list[torch.Tensor], names: Iterable[str],
) -> set[str]:  # fmt: skip
    """Of the names those on which what is made depends: it is other where they held NaN, infinities (integers: all bits turned) or zeros before."""
    import torch

    found = set()
    for name in names:
        value = before[name]
        inexact = value.is_floating_point() or value.is_complex()
        fills = [torch.full_like(value, fill) for fill in (torch.nan, torch.inf)] if inexact else [~value]
        for fill in (*fills, torch.zeros_like(value)):
            other = again({**before, name: fill})
            # Who cannot bear other values reads them.
            if other is None or not all(
                torch.equal(_comparable(one), _comparable(two)) for one, two in zip(made, other, strict=True)
            ):
                found.add(name)
                break
    return found


def _call_again(
    function: Callable[..., Any], bound: inspect.BoundArguments, lists: dict[str, Any], changed: list[str], given: dict[str, torch.Tensor],
) -> list[torch.Tensor] | None:  # fmt: skip
    """What the function makes of copies of other tensors: those that it changes, then those that it returns. None where it raises."""
    import torch

    fresh = {key: value.clone() for key, value in given.items()}

    def put(value: Any, named: Any) -> Any:
        if isinstance(named, list):
            return type(value)(put(one, inner) for one, inner in zip(value, named, strict=True))
        return fresh.get(named, value)

    call = copy.copy(bound)
    call.arguments = {key: put(value, lists.get(key, key)) for key, value in bound.arguments.items()}
    try:
        made = function(*call.args, **call.kwargs)
    except Exception:  # noqa: BLE001, it may raise anything
        return None
    outputs = [one for one in (made if isinstance(made, tuple | list) else [made]) if isinstance(one, torch.Tensor)]
    return [
        *(fresh[key] for key in changed),
        *(one for one in outputs if all(one is not fresh[key] for key in changed)),
    ]


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """torch compares no floats of eight bits. A NaN equals none."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def _named_tensors(name: str, value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Names of the tensors of a list, or of lists in one, which go into `tensors`; None where it is none of these."""
    import torch

    if not isinstance(value, tuple | list) or not value:
        return None
    if all(isinstance(one, torch.Tensor) for one in value):
        names = [f"{name}_{at}" for at in range(len(value))]
        tensors |= dict(zip(names, value, strict=True))
        return names
    inner = [_named_tensors(f"{name}_{at}", one, tensors) for at, one in enumerate(value)]
    return inner if all(inner) else None


def _named(text: str) -> Callable[..., Any]:
    """`module:function` or `path.py:function`. Raises CaptureError."""
    place, _, name = text.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        found = module
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # noqa: BLE001, the user's own module may raise anything
        raise CaptureError(f"{text} cannot be had: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise CaptureError(f"{text} is no function")
    return found
