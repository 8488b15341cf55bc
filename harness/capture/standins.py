"""Stand-ins for what an engine's test imports and is not here, so that the engine's own Python runs as far as it goes.

The checkout's own modules are themselves. What of them fails while it is imported keeps the names that it had by then, and every other name of it is
a stand-in; a module that is nowhere is one as a whole, such as an extension that was not built. Without Triton its decorators are stand-ins, too.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from harness.capture.watch import CallWatcher, KernelCall

OWN_NAMES = frozenset(("benchmarks", "compiler", "graph", "harness", "kernels", "minibatch", "nodes", "run", "tests"))
"""This program's own outermost modules: what an engine imports by such a name is the engine's, or a package of PyPI (`kernels` of Hugging Face)."""


class StandInResult:
    """What a stand-in returned: any method, index or operator of it is it again, so a comparison shows whose it was."""

    _at = 0

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

    def __sub__(self, other: Any) -> Any:
        import torch

        if isinstance(other, torch.Tensor):
            self._call.differences.append((self._at, other))
        return self

    __rsub__ = __sub__

    def __add__(self, _other: Any) -> Any:
        return self

    __radd__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __add__
    __and__ = __or__ = __lt__ = __le__ = __gt__ = __ge__ = __matmul__ = __add__

    def __neg__(self) -> Any:
        return self

    __pos__ = __abs__ = __invert__ = __neg__

    def __setitem__(self, _at: Any, _value: Any) -> None:
        return

    def __eq__(self, other: object) -> bool:
        """A test goes on as if its sizes were right."""
        self._call.with_numbers |= isinstance(other, list)
        return True

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, function: Any, _kinds: Any, given: Any = (), named: Any = None) -> Any:
        own = next(one for one in (*given, *(named or {}).values()) if isinstance(one, StandInResult))
        return given[1] - given[0] if "sub" in function.__name__ and len(given) == 2 and given[1] is own else own


class StandInPart(StandInResult):
    """One of several that a stand-in returned."""

    def __init__(self, call: KernelCall, at: int) -> None:
        super().__init__(call)
        self._at = at

    def __getitem__(self, _at: Any) -> Any:
        return self


class StandIn(types.ModuleType):
    """A module that is not installed."""

    def __init__(self, name: str, watcher: CallWatcher) -> None:
        super().__init__(name)
        self._watcher = watcher
        self.__path__ = (
            [] if name in OWN_NAMES else _folders_of(name)
        )  # modules of it that need the rest not are themselves
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

    # As a base of a class, in an annotation, beside `isinstance`, in a loop, as a version that is compared:
    def __mro_entries__(self, _bases: Any) -> tuple[()]:
        return ()

    def __instancecheck__(self, _value: Any) -> bool:
        return False

    def __getitem__(self, _at: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, _other: Any) -> Any:
        return self

    __ror__ = __add__ = __radd__ = __or__

    def __ge__(self, _other: Any) -> bool:
        return True

    __gt__ = __ge__

    def __le__(self, _other: Any) -> bool:
        return False

    __lt__ = __le__


class _Launched:
    """A kernel of Triton's or its tuner: a launch does nothing."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.fn = function

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return lambda *_given, **_named: None


def _stand_in_triton(watcher: CallWatcher) -> StandIn:
    """What of Triton a host function needs where it is not installed."""

    def launched(function: Any = None, **_named: Any) -> Any:
        return _Launched(function) if callable(function) else _Launched

    module = StandIn("triton", watcher)
    module.jit = launched  # type: ignore[attr-defined]
    module.autotune = module.heuristics = lambda *_given, **_named: lambda kernel: kernel  # type: ignore[attr-defined]
    module.cdiv = lambda one, other: -(-one // other)  # type: ignore[attr-defined]
    module.next_power_of_2 = lambda one: 1 << max(0, math.ceil(one) - 1).bit_length()  # type: ignore[attr-defined]
    module.__dict__["__version__"] = "3.0.0"
    return module


class _MissingLoader(importlib.abc.Loader):
    def __init__(self, watcher: CallWatcher) -> None:
        self.watcher = watcher

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _stand_in_triton(self.watcher) if spec.name == "triton" else StandIn(spec.name, self.watcher)

    def exec_module(self, module: types.ModuleType) -> None:
        """It has nothing."""


class _EngineLoader(importlib.machinery.SourceFileLoader):
    """One of the checkout's modules, whose names are stand-ins from where it fails."""

    imports: EngineImports

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            super().exec_module(module)
        except Exception as error:  # noqa: BLE001, an engine's module may fail in any way where its parts are not here
            self.imports.failed[module.__name__] = f"{type(error).__name__}: {error}"
            watcher, known = self.imports.watcher, module.__name__

            def missing(name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                made = StandInFunction(f"{known}.{name}", watcher)
                setattr(module, name, made)
                return made

            module.__getattr__ = missing  # type: ignore[method-assign]
        self.imports.watcher.wrap(module)


class _TestLoader(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        tree = ast.parse(data, path)
        tried = [isinstance(one, ast.Expr) and ast.unparse(one).startswith("sys.path.") for one in tree.body]
        passing = [ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])]
        tree.body = [
            ast.Try([one], passing, [], []) if is_tried else one for one, is_tried in zip(tree.body, tried, strict=True)
        ]
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self.get_data(self.path), self.path)


class BuildIsMissing(importlib.abc.MetaPathFinder):
    """Inside, a test's file is imported though what it says to sys.path fails."""

    def __init__(self, test: Path) -> None:
        self.test = test

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != self.test:
            return None
        spec.loader = _TestLoader(name, spec.origin)
        return spec

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)


class EngineImports(importlib.abc.MetaPathFinder):
    """Imports of a checkout while one of its tests is watched. Two of it are looked into: before the interpreter's own, for the checkout's modules, and
    after it, for what is nowhere."""

    def __init__(self, test: Path, watcher: CallWatcher, whole: bool) -> None:
        """`whole`: an import that its own file expects to fail is a stand-in, too."""
        marks = (".git", "pyproject.toml", "setup.py")
        self.root = next((one for one in test.parents if any((one / mark).exists() for mark in marks)), test.parent)
        self.watcher, self.whole, self.test = watcher, whole, test
        packages = [above.name for above in test.parents if (above / "__init__.py").is_file()]
        self.exchanged = OWN_NAMES - set(packages[-1:])  # the test's own package is imported by pytest
        self.aside: dict[str, types.ModuleType] = {}
        """The checkout's modules of these names while this program's are in sys.modules, or the other way round."""
        self.shows_theirs = False
        self.failed: dict[str, str] = {}
        """Modules of the checkout that failed as they were imported -> by what."""
        self.made: dict[str, None] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        outermost = self.shows_theirs and path is None and name in self.exchanged
        places = [str(self.test.parent), str(self.root)] if outermost else path
        spec = importlib.machinery.PathFinder.find_spec(name, places, target)
        if outermost and (spec is None or spec.origin is None):
            return spec or self.missing(name, sys._getframe(1))
        if spec is None or spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        if type(spec.loader) is importlib.machinery.SourceFileLoader and self.is_own(spec.origin):
            loader = _EngineLoader(name, spec.origin)
            loader.imports = self
            spec.loader = loader
            return spec
        return None

    def is_own(self, file: str) -> bool:
        if "site-packages" in file:  # before links are followed: it is asked of each of two thousand modules
            return False
        # It is asked inside of an import, and `Path` itself imports from Python 3.12 on.
        real, root = os.path.realpath(file), str(self.root)
        return real == root or real.startswith(root.rstrip("/") + "/")

    def missing(self, name: str, frame: types.FrameType | None) -> importlib.machinery.ModuleSpec | None:
        """A stand-in, where a file of the checkout imports it."""
        outer = name.rpartition(".")[0]
        if outer and not isinstance(sys.modules.get(outer), StandIn) and not self._is_own_package(outer):
            return None
        by_statement = False
        while frame is not None and ("importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
            by_statement |= frame.f_code.co_name == "_find_and_load"
            frame = frame.f_back
        if frame is None or not by_statement or not self.is_own(frame.f_code.co_filename):
            return None
        if not self.whole and _expects_failure(frame.f_code.co_filename, frame.f_lineno):
            return None
        self.made[name] = None
        return importlib.machinery.ModuleSpec(name, _MissingLoader(self.watcher), is_package=True)

    def _is_own_package(self, name: str) -> bool:
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        return bool(file) and self.is_own(file)

    def _exchange(self) -> None:
        held = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self.exchanged}
        for name in held:
            del sys.modules[name]
        sys.modules.update(self.aside)
        self.aside, self.shows_theirs = held, not self.shows_theirs

    def _importing(self, known: Callable[..., Any]) -> Callable[..., Any]:
        """`__import__`, by which the checkout's files get the checkout's modules where this program's have the same names."""

        def imported(
            name: str,
            globals: Any = None,  # names as __import__ has them
            locals: Any = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            if level or name.partition(".")[0] not in self.exchanged:
                return known(name, globals, locals, fromlist, level)
            if self.is_own(str((globals or {}).get("__file__") or "")) == self.shows_theirs:
                return known(name, globals, locals, fromlist, level)
            self._exchange()
            try:
                return known(name, globals, locals, fromlist, level)
            finally:
                self._exchange()

        return imported

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Inside, imports go this way; what was imported so is forgotten behind."""
        last = _LastFinder(self)
        before = dict(sys.modules)
        for name, module in before.items():
            file = getattr(module, "__file__", None)
            if file and self.is_own(file):
                del sys.modules[name]
        place = next(
            (at for at, one in enumerate(sys.meta_path) if one is importlib.machinery.PathFinder), len(sys.meta_path)
        )
        sys.meta_path.insert(place, self)
        sys.meta_path.append(last)
        importlib.invalidate_caches()
        try:
            with mock.patch.object(builtins, "__import__", self._importing(builtins.__import__)):
                yield
        finally:
            sys.meta_path.remove(self)
            sys.meta_path.remove(last)
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None) or ""
                if name not in before and (isinstance(module, StandIn) or (file and self.is_own(file))):
                    del sys.modules[name]
            sys.modules.update({name: module for name, module in before.items() if name not in sys.modules})


class _LastFinder(importlib.abc.MetaPathFinder):
    def __init__(self, imports: EngineImports) -> None:
        self.imports = imports

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return self.imports.missing(name, sys._getframe(1))


@functools.lru_cache(maxsize=4096)
def _guarded_lines(file: str) -> tuple[tuple[int, int], ...]:
    """First and last lines of what stands under a `try` that takes a failed import."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(
            one.type is None or re.search(r"ImportError|ModuleNotFoundError|\bException\b", ast.unparse(one.type))
            for one in node.handlers
        ):
            found.append((node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno))
    return tuple(found)


def _expects_failure(file: str, line: int) -> bool:
    return any(first <= line <= last for first, last in _guarded_lines(file))


def list_imports(test: Path) -> list[str]:
    """Modules that a file of Python imports, outer ones first."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names[node.module] = None
    return sorted(names)


def importable(name: str) -> bool:
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


def is_of_checkout(name: str, test: Path) -> bool:
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
