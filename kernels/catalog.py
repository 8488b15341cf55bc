"""Every kernel by name, and a user's own by the path of its folder.

A kernel is a folder with `spec.py` (binds `SPEC`), `reference.py` (defines `reference`), baselines and known wrong
candidates. Both Python files are executed by their location under a name of their own: `kernels` is also a package on
PyPI, and a user's folder need not be importable. Nothing here imports torch; only a call of the reference does.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import inspect
import math
import os
import symtable
import sys
import traceback
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kernels.spec import DRAWN, HEADER_SUFFIXES, SOURCE_SUFFIXES, Device, Spec
from kernels.spec import Tensor as Tensor_

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

FOLDER = Path(__file__).resolve().parent
DEVICES_OF_SUFFIX: dict[str, tuple[Device, ...]] = {".cu": ("cuda",), ".cpp": ("cpu",), ".py": ("cuda", "cpu")}
_SUFFIX_OF_DEVICE: dict[Device, str] = {"cuda": ".cu", "cpu": ".cpp"}


LEFT_OUT = ("wrong", "README.md", "__pycache__")
"""Names in a kernel's folder that no answer depends on."""
FILES_BYTES = 16 << 20
"""Bytes of a kernel's folder without its headers (upper bound)."""
HEADERS_BYTES, HEADERS_MOST = 32 << 20, 8000
"""Bytes and number of the headers that a kernel brings (upper bounds): CUTLASS whole is 1,400 files and 25 MiB."""


class KernelError(Exception):
    """What the user named or wrote cannot be used; the message is one sentence that says where and what."""


@dataclass(frozen=True)
class Kernel:
    """One operation and the folder that describes it. Cheap to make, to hash and to pickle."""

    spec: Spec
    folder: Path
    allowed: tuple[tuple[str, float], ...] = field(default=(), kw_only=True, compare=False)
    """Output -> error that any candidate may show because the baseline does, in units of what rounding every operator's result to the
    workload's dtype makes (harness/checks/shipped.py)."""

    def __hash__(self) -> int:
        return hash(self.folder)

    def of_dtypes(self, dtypes: tuple[str, ...]) -> Kernel:
        """The same kernel with these of its dtypes and their workloads alone; all where none is named."""
        workloads = tuple(workload for workload in self.spec.workloads if workload.dtype in dtypes)
        kept = {"dtypes": dtypes, "workloads": workloads}
        return replace(self, spec=self.spec.model_copy(update=kept)) if dtypes else self

    @property
    def has_reference(self) -> bool:
        """False only where properties.py alone says what is right."""
        return (self.folder / "reference.py").exists()

    @property
    def properties(self) -> ModuleType | None:
        """The module of properties.py (see harness/checks/properties.py), None where the folder has none. Raises KernelError."""
        path = self.folder / "properties.py"
        return _properties(path) if path.exists() else None

    @property
    def reference_on(self) -> Device:
        """Where its reference computes, given tensors of either device."""
        return "cpu"

    def reference_axes(self) -> tuple[str, ...]:
        """The axes of the spec that the reference asks for by name, beside inputs and scalars: a name that both have is the input's."""
        asked = inspect.signature(_reference(self.folder / "reference.py")).parameters.keys()
        return tuple(asked & set(self.spec.axes) - {tensor.name for tensor in self.spec.inputs})

    @property
    def reference_asks_dtype(self) -> bool:
        """Whether the reference takes `dtype`, the workload's, to round as the operation does."""
        return "dtype" in inspect.signature(_reference(self.folder / "reference.py")).parameters

    def defines_right(self) -> str:
        """The text of all that says what is right beside the spec, for keys and digests."""
        paths = (self.folder / name for name in ("reference.py", "properties.py", "inputs.py"))
        return "\n".join(_read(path, "be readable") for path in paths if path.exists())

    @functools.cached_property
    def headers(self) -> dict[str, bytes]:
        """What sources may include, or import where the baseline is Python, by the path below the folder: headers beside the baseline and all of
        `build`'s include folders, those behind links too. Raises KernelError for a folder that is not there, or one that is too large."""
        if self.spec.problem:
            return {}
        paths = {path.name: path for path in sorted(self.folder.glob("*")) if path.suffix in HEADER_SUFFIXES}
        modules = {".py"} if any(self.folder.glob("baseline*.py")) else set()
        for include in self.spec.build.include:
            place = self.folder / include
            if not place.is_dir():
                raise KernelError(f"{self.folder / 'spec.py'}: Spec: field build.include: {place} is no folder")
            for found, _folders, files in os.walk(place, followlinks=True):
                below = Path(include) / Path(found).relative_to(place)
                kinds = HEADER_SUFFIXES | SOURCE_SUFFIXES | modules | {""}  # as <cuda/cmath>
                paths |= {str(below / name): Path(found) / name for name in sorted(files) if Path(name).suffix in kinds}
                if len(paths) > HEADERS_MOST:  # a link may lead in a circle
                    raise KernelError(
                        f"{place} holds more than {HEADERS_MOST:,} headers: name the folders that the source needs"
                    )
        held = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
        if sum(map(len, held.values())) > HEADERS_BYTES:
            raise KernelError(
                f"the headers of {self.folder} take more than {HEADERS_BYTES >> 20} MiB: name fewer include folders"
            )
        return held

    def reference(self, /, **arguments: Any) -> dict[str, Tensor]:
        """What is right: every output and inout tensor by name, in the dtype and on the device of the inputs.

        Takes every input and inout tensor and every scalar of the spec by name and, where it names them, axes (no
        outputs), and changes none of them. Raises KernelError where reference.py cannot be called so or leaves an output away.
        """
        path = self.folder / "reference.py"
        function = _reference(path)
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise KernelError(f"{path}: reference() does not take the spec's inputs and scalars: {error}") from None
        given = next((value.device for value in arguments.values() if hasattr(value, "device")), None)
        # What it makes without saying where, as by torch.arange(n), lies beside its inputs.
        with nullcontext() if given is None or given.type == "cpu" else given:
            expected = function(**arguments)
        if not isinstance(expected, dict):
            raise KernelError(
                f"{path}: reference() returned a {type(expected).__name__}, not a dict of tensors by name"
            )
        for tensor in self.spec.outputs:
            if tensor.name not in expected and self.properties is None:
                raise KernelError(f"{path}: reference() returned no {tensor.name!r}, which the spec lists as an output")
        return expected

    def reference_in(self, dtype: str, /, **arguments: Any) -> dict[str, Tensor]:
        """`reference`, told in which dtype ("float64" or "float32") it is to compute, as the float inputs say, too."""
        return self.reference(**arguments)

    def files(self) -> dict[str, bytes]:
        """All that an answer may depend on, by path below the folder, headers behind links too. Raises KernelError for too much."""
        found: dict[str, bytes] = {}
        for path in sorted(self.folder.rglob("*")):
            inside = path.relative_to(self.folder)
            if path.is_file() and not any(part in LEFT_OUT or part.startswith(".") for part in inside.parts):
                found[str(inside)] = path.read_bytes()
                if str(inside) not in self.headers and sum(map(len, found.values())) > FILES_BYTES:
                    raise KernelError(
                        f"{self.folder} holds more than {FILES_BYTES >> 20} MiB: keep only the kernel's files"
                    )
        return found | self.headers

    def described(self) -> tuple[bytes, Any]:
        """What is known of a PyTorch module from executing it (pickled import, Description); nothing of a folder."""
        return b"", None

    @property
    def text(self) -> str:
        """The PyTorch module that is made faster, as it is executed; "" where a folder describes the kernel."""
        return ""

    kernelbench = False
    """Whether it is a module in KernelBench's form, which KernelBench's own protocol can judge."""

    def gpu_bytes(self) -> int:
        """Bytes of a GPU's memory that the kernel itself holds."""
        return 0

    def close(self) -> None:
        """End what the kernel has started: nothing here."""

    def baselines(self, device: Device) -> dict[str, Path]:
        """`baseline.cu` under the name "baseline", `baseline.<name>.cu` under <name>; `.cpp` and `.py` alike."""
        return _files(self.folder, "baseline", device)

    def baseline(self, device: Device, name: str | None = None) -> tuple[str, Path]:
        """The named baseline, or the spec's default, or the only one. Raises KernelError where there is none."""
        found = self.baselines(device)
        if not found:
            suffix = _SUFFIX_OF_DEVICE[device]
            raise KernelError(
                f"{self.folder} has no baseline for {device}: put it into baseline{suffix} or baseline.<name>{suffix}"
            )
        chosen = name or self.spec.default_baseline.get(device) or next(iter(found))
        if chosen not in found:
            raise KernelError(f"{self.spec.name} has no {device} baseline {chosen!r}; {_nearest(chosen, found)}")
        return chosen, found[chosen]


def names() -> list[str]:
    """Every kernel of the catalog: the folders beside this file that have a spec.py."""
    return sorted(name for name in os.listdir(FOLDER) if os.path.exists(f"{FOLDER}/{name}/spec.py"))  # noqa: PTH110, each load asks


def load(name_or_path: str) -> Kernel:
    """A kernel of the catalog by its name, or any folder by its path. Raises KernelError."""
    known = names()
    if name_or_path in known:
        folder = FOLDER / name_or_path
    else:
        folder = Path(name_or_path).expanduser()
        if not folder.is_dir():
            if "/" in name_or_path:
                raise KernelError(f"{name_or_path} is not a folder")
            raise KernelError(f"there is no kernel {name_or_path!r}; {_nearest(name_or_path, known)}")
        folder = folder.resolve()
    path = folder / "spec.py"
    kernel = drawing(Kernel(_spec(path, _read(path, "bind SPEC = Spec(...)")), folder))
    if not (folder / "properties.py").exists() or kernel.has_reference:
        _check_binds(folder / "reference.py", "reference")
    if (folder / "properties.py").exists():
        _check_binds(folder / "properties.py", "violated")
    _check_baselines(kernel)
    return kernel


DRAWS: dict[str, Kernel] = {}
"""Name in `drawn:NAME`, which holds the hash of the inputs.py that defines the function -> its kernel."""


def drawing(kernel: Kernel) -> Kernel:
    """The kernel, its functions of inputs.py known by names that no other kernel's have. Raises KernelError where one is missing."""
    path = kernel.folder / "inputs.py"
    names = {v.partition(":")[2] for t in kernel.spec.inputs for v in t.values if v.startswith(f"{DRAWN}:")}
    if not names:
        return kernel
    mark = hashlib.sha256(f"{path} {_read(path, 'define the functions of drawn:NAME')}".encode()).hexdigest()[:12]
    renamed = {name: f"{name.partition('__')[0]}__{mark}" for name in names}
    for name in names:
        _check_binds(path, name.partition("__")[0])

    def told(value: str) -> str:
        return f"{DRAWN}:{renamed[value.partition(':')[2]]}" if value.startswith(f"{DRAWN}:") else value

    arguments = tuple(
        a.model_copy(update={"values": tuple(map(told, a.values))})
        if isinstance(a, Tensor_) and a.role in ("input", "inout")
        else a
        for a in kernel.spec.arguments
    )
    made = replace(kernel, spec=kernel.spec.model_copy(update={"arguments": arguments}))
    DRAWS.update(dict.fromkeys(renamed.values(), made))
    return made


def draw_by_function(name: str, axes: dict[str, int], shape: tuple[int, ...], generator: object) -> Tensor:
    """What the function `name` of an inputs.py draws for a tensor of that shape. Raises KernelError."""
    kernel = DRAWS[name]
    path, function = kernel.folder / "inputs.py", name.partition("__")[0]
    own = getattr(_inputs(path), function)
    shapes = [kernel.spec.shape(t, axes) for t in kernel.spec.inputs if f"{DRAWN}:{name}" in t.values]
    whole = shape if shape in shapes else shapes[0]
    try:
        made = own(whole, {**axes, **kernel.spec.scalars}, generator)
        found = tuple(made.shape)
    except Exception as error:  # noqa: BLE001, the user's own code may raise anything
        raise KernelError(
            f"{path}: {function}() fails for the shape {list(whole)}: {type(error).__name__}: {error}"
        ) from None
    if found != whole:
        raise KernelError(f"{path}: {function}() made a tensor of shape {list(found)}, asked for {list(whole)}")
    return made if shape == whole else made.flatten()[: math.prod(shape)].reshape(shape)


def describe_drawing(name: str) -> str:
    """What the function `name` of an inputs.py says that it draws, in one line; its bare name where it says nothing."""
    function = name.partition("__")[0]
    own = getattr(_inputs(DRAWS[name].folder / "inputs.py"), function) if name in DRAWS else None
    return " ".join((getattr(own, "__doc__", None) or function).split())


@functools.cache
def _inputs(path: Path) -> ModuleType:
    return _execute(path, _read(path, "define the functions of drawn:NAME"))


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(known)}"


def _files(folder: Path, stem: str, device: Device) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.glob(f"{stem}*")):
        first, *middle, suffix = path.name.split(".")
        if first != stem or device not in DEVICES_OF_SUFFIX.get(f".{suffix}", ()):
            continue
        name = ".".join(middle) or stem
        if name in found:
            raise KernelError(f"{folder}: {found[name].name} and {path.name} are both the {device} baseline {name!r}")
        found[name] = path
    return found


def _read(path: Path, holds: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KernelError(f"{path.parent} has no {path.name}, which must {holds}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"{path} cannot be read: {error}") from None


def _execute(path: Path, text: str) -> ModuleType:
    """The module of one file. No byte code is kept: two edits within a second would otherwise be taken for one."""
    module = ModuleType(f"_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # Pydantic and dataclasses look annotations up through here.
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except ValidationError as error:
        raise KernelError(f"{path}, line {_line(path, error)}: {one_sentence(error)}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001, the user's own code may raise anything, SystemExit too
        del sys.modules[module.__name__]
        said = str(error).splitlines()[0] if str(error) else "no reason given"
        raise KernelError(f"{path}, line {_line(path, error)}: {type(error).__name__}: {said}") from None
    return module


def _line(path: Path, error: BaseException) -> int:
    """The last line of that file that was running, 0 where none was."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    return max((f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)), default=0)


def one_sentence(error: ValidationError) -> str:
    """The first complaint, as `Tensor 'input': field shape[1]: what is wrong`."""
    # A misspelt field is both unknown and missing; the misspelling is what to name.
    first, *others = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    said = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        said = "is required"
    elif first["type"] == "extra_forbidden":
        said = f"is no field of {error.title}"
    elif first["type"] != "value_error":
        said = f"{said[0].lower()}{said[1:]}, not {_short(first['input'])}"
    given = first["input"] if isinstance(first["input"], dict) else {}
    named = f" {given['name']!r}" if error.title != "Spec" and isinstance(given.get("name"), str) else ""
    field = f" field {place}:" if place else ""
    more = f" (and {len(others)} more)" if others else ""
    return f"{error.title}{named}:{field} {said}{more}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.lru_cache(256)
def _spec(path: Path, text: str) -> Spec:
    module = _execute(path, text)
    spec = getattr(module, "SPEC", None)
    if not isinstance(spec, Spec):
        found = "binds no SPEC" if spec is None else f"binds SPEC to a {type(spec).__name__}"
        raise KernelError(f"{path} {found}; it must bind SPEC = Spec(...) of kernels.spec")
    return spec


def _check_binds(path: Path, name: str) -> None:
    """That the file is there, parses and binds the function, without executing it: that would import torch."""
    if not _binds(path, _read(path, f"define {name}(...)"), name):
        raise KernelError(f"{path} defines no function {name}(...)")


@functools.lru_cache(1024)
def _binds(path: Path, text: str, name: str) -> bool:
    try:
        bound = symtable.symtable(text, str(path), "exec").lookup(name)
    except SyntaxError as error:
        raise KernelError(f"{path}, line {error.lineno}: {error.msg}") from None
    except KeyError:
        return False
    return bound.is_assigned() or bound.is_imported()


@functools.cache
def _properties(path: Path) -> ModuleType:
    module = _execute(path, _read(path, "define violated(...)"))
    if not callable(getattr(module, "violated", None)):
        raise KernelError(f"{path} defines no function violated(...)")
    if hasattr(module, "several") != hasattr(module, "violated_together"):
        raise KernelError(f"{path} must define both several(...) and violated_together(...), or neither")
    return module


@functools.cache
def _reference(path: Path) -> Callable[..., dict[str, Tensor]]:
    function = getattr(_execute(path, _read(path, "define reference(...)")), "reference", None)
    if not callable(function):
        raise KernelError(f"{path} defines no function reference(...)")
    return function


def _check_baselines(kernel: Kernel) -> None:
    for device in _SUFFIX_OF_DEVICE:
        found = kernel.baselines(device)
        default = kernel.spec.default_baseline.get(device)
        where = f"{kernel.folder / 'spec.py'}: Spec: field default_baseline"
        if default is not None and default not in found:
            there = ", ".join(found) or "none"
            raise KernelError(f"{where}: {device} names {default!r}, but the folder's {device} baselines are: {there}")
        if default is None and len(found) > 1:
            raise KernelError(f"{where}: must name one for {device}, since there are several: {', '.join(found)}")
