"""The typed description of an operation: its arguments, its axes and the workloads it is judged on.

A kernel is a folder with a `spec.py` that binds `SPEC = Spec(...)` and a `reference.py` that defines
`reference(**arguments) -> dict[str, torch.Tensor]`. Nothing here imports torch, so listing kernels is quick.
"""

from __future__ import annotations

import ast
import functools
import keyword
import math
import operator
import re
import struct
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8", "uint32", "uint16",
    "uint8", "bool",
]  # fmt: skip
DTYPE_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip
SIGNIFICAND_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}
BITS_THAT_COUNT = 3
"""An output of which fewer leading bits must be right is hardly checked: so much `ulps` may take at most."""
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
LIMITS: dict[str, tuple[float, float]] = {
    "float64": (-1.7976931348623157e308, 1.7976931348623157e308), "float32": (-LARGEST_FLOAT, LARGEST_FLOAT),
    "float16": (-65504.0, 65504.0), "bfloat16": (-(2 - 2**-7) * 2.0**127, (2 - 2**-7) * 2.0**127),
    "float8_e4m3fn": (-448.0, 448.0), "float8_e5m2": (-57344.0, 57344.0), "uint32": (0.0, 2.0**32 - 1), "uint16": (0.0, 65535.0),
    "int64": (-(2.0**63), 2.0**63), "int32": (-(2.0**31), 2.0**31 - 1),
    "int16": (-(2.0**15), 2.0**15 - 1), "int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "bool": (0.0, 1.0),
}  # fmt: skip
"""Dtype -> its least and largest finite value."""
Device = Literal["cuda", "cpu"]


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", text):
        raise ValueError(f"{text[:80]!r} is no name: at most 64 of a-z, 0-9 and _, the first a letter")
    return text


def _no_keyword(text: str) -> str:
    if keyword.iskeyword(text):
        raise ValueError(f"{text!r} is a keyword of Python, so neither an expression nor a reference could name it")
    return text


def _symbol(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,127}", text):
        raise ValueError(f"{text[:80]!r} is no name of a function in C")
    return text


Name = Annotated[str, AfterValidator(_name)]
Symbol = Annotated[str, AfterValidator(_symbol)]
OwnName = Annotated[Name, AfterValidator(_no_keyword)]

# What a generator may put into an input. Every kernel must survive `ordinary`; a spec narrows or widens the list.
NAMED_VALUES = (
    "ordinary",
    "large",
    "tiny",
    "zeros",
    "outliers",
    "infinities",
    "zero_rows",
    "uniform",
    "scaled",
    "bits",
)
AXIS_VALUES = ("index", "padded", "distinct", "permutation", "offsets", "starts")
"""Integers that an axis bounds: rows below it, the same with some -1, these without repeats, no -1 and no repeats, row pointers up to it, those without the
last."""
BELOW = "below"
"""Integers that another input bounds, place by place: `below:lengths`."""
OWN_VALUES = ("given", "near", "among")
"""Distributions drawn by a problem's own generator (harness/checks/drawing.py, GIVEN): as it draws them; the same
with other low bits; element by element from the values that it has."""
DRAWN = "drawn"
"""Distributions drawn by a function of the folder's inputs.py: `drawn:NAME`."""
NUMBERED_VALUES = {
    "range": "LOW:HIGH with two finite numbers, the lower first",
    "normal": "MEAN:DEVIATION with two finite numbers, the second not negative",
    "integers": "LOW:HIGH with two whole numbers, the lower first; HIGH is left out",
}
"""Kinds with two numbers, and which."""


def check_values(text: str) -> str:
    """The text where it names a distribution. Raises ValueError."""
    kind, _, rest = text.partition(":")
    if text in NAMED_VALUES or (kind in (*AXIS_VALUES, BELOW) and re.fullmatch(r"[a-z_0-9]+", rest)):
        return text
    if kind in (*OWN_VALUES, DRAWN) and re.fullmatch(r"[a-z_0-9]+", rest):
        return text
    if kind not in NUMBERED_VALUES:
        known = (
            *NAMED_VALUES,
            *(f"{name}:AXIS" for name in AXIS_VALUES),
            f"{BELOW}:TENSOR",
            f"{DRAWN}:FUNCTION of inputs.py",
            *NUMBERED_VALUES,
            *(f"{name}:NAME" for name in OWN_VALUES),
        )
        raise ValueError(f"{text[:80]!r} is no distribution: there is {', '.join(known)}")
    if not _numbers_fit(kind, rest):
        raise ValueError(f"{text[:80]!r} must be {kind}:{NUMBERED_VALUES[kind]}")
    return text


def _numbers_fit(kind: str, text: str) -> bool:
    try:
        if kind == "integers":
            low, high = (int(bound) for bound in text.split(":"))
            return -(2**63) <= low < high < 2**63
        first, second = (float(number) for number in text.split(":"))
    except ValueError:
        return False
    if kind == "range":  # random numbers are made by its width
        return first < second and math.isfinite(second - first)
    return math.isfinite(first) and math.isfinite(second) and second >= 0


Values = Annotated[str, AfterValidator(check_values)]
ORDINARY_VALUES: tuple[str, ...] = ("ordinary", "large", "tiny", "zeros", "outliers")


class Frozen(BaseModel):
    """Base of every record: immutable, and a misspelt field is an error rather than a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.BitAnd: operator.and_,
}  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _tree(text: str) -> ast.expr:
    """Raises SyntaxError."""
    return ast.parse(text, mode="eval").body


def expression(text: str, axes: dict[str, int]) -> int:
    """The value of an integer expression over axis names, such as `2*hidden`.

    Only names, integers, `+ - * // &` and parentheses are understood; anything else raises ValueError.
    """

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in axes:
                raise ValueError(f"{text!r} names {node.id!r}, which is no axis (axes: {', '.join(axes)})")
            return axes[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{text!r} is not an integer expression of axes, + - * // & and parentheses")

    try:
        return value(_tree(text))
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an integer expression") from error


def _named(field: str, text: str, axes: dict[str, int]) -> int:
    """`expression`, whose ValueError names the field that holds the text."""
    try:
        return expression(text, axes)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


_BOTH_FLAGS = r"-std=(c|gnu)\+\+(14|17|20|23)|-O[0-3]|-[DU][A-Za-z_]\w*|-D[A-Za-z_]\w*=[\w.:+-]*|-w|-g"
_CUDA_FLAGS = (
    r"--?(expt-relaxed-constexpr|(expt-)?extended-lambda|use_fast_math|lineinfo|generate-line-info|restrict|extra-device-vectorization)"
    r"|--?(fmad|ftz|prec-div|prec-sqrt|maxrregcount|diag-suppress|default-stream|static-global-template-stub|split-compile)=[\w,-]+"
    r"|(-Xptxas|--ptxas-options)=(-O[0-3]|-v|-dlcm=c[agsv]|--?warn-[\w-]+|--?allow-expensive-optimizations=true)"
)
_HOST_FLAGS = (
    r"-ffp-contract=(off|on|fast)|-f(no-)?(fast-math|finite-math-only|math-errno|trapping-math|associative-math|signed-zeros"
    r"|unroll-loops|unroll-all-loops|tree-vectorize|strict-aliasing|permissive|openmp|openmp-simd|exceptions|rtti|inline"
    r"|omit-frame-pointer|rounding-math|unsafe-math-optimizations|reciprocal-math|prefetch-loop-arrays|wrapv)"
    r"|-m(no-)?(sse|ssse|avx|fma|f16c|bmi|amx|popcnt|arch=|tune=|prefer-)[\w.=-]*|-pthread|-W(no-)?[a-z][\w+=-]*"
)
_TWO_PARTS = ("-Xcompiler", "-Xptxas", "--ptxas-options", "-maxrregcount", "-diag-suppress", "-D", "-U")
"""Flags whose value may stand behind a blank, as engines write them."""
HEADER_SUFFIXES = frozenset((".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl", ".ipp", ".def"))
SOURCE_SUFFIXES = frozenset((".cu", ".cpp", ".cc", ".c"))


def check_flag(text: str) -> str:
    """A compiler's flag that changes what code is made of a source and nothing else, in one word. Raises ValueError."""
    first, _, rest = text.strip().partition(" ")
    word = first
    if rest and first in _TWO_PARTS:
        word = f"{first}{'' if first in ('-D', '-U') else '='}{rest.strip()}"
    host = word.removeprefix("-Xcompiler=")
    if re.fullmatch(_HOST_FLAGS if host != word else f"{_BOTH_FLAGS}|{_CUDA_FLAGS}|{_HOST_FLAGS}", host):
        return host
    raise ValueError(
        f"{text[:80]!r} is no flag that a kernel may bring: there are -D, -U, -std, -O, -w, nvcc's --expt-relaxed-constexpr, "
        "--extended-lambda, -use_fast_math, -maxrregcount, -Xptxas and arithmetic ones, and g++'s -f, -m and -W; none that reads "
        "other files, links, or runs programs (architectures are the device's)"
    )


def _inside(text: str) -> str:
    """A folder's path below the kernel's."""
    parts = text.split("/")
    if text in ("", ".") or text.startswith("/") or ".." in parts or not re.fullmatch(r"[\w.+/ -]{1,200}", text):
        raise ValueError(
            f"{text[:80]!r} is not below the kernel's folder: name a folder in it, or make a link there (ln -s {text[:80]} include)"
        )
    return text.removesuffix("/")


INCLUDED = "-include"
"""Flag before each of `BuildSettings.sources`."""


class BuildSettings(Frozen):
    """How sources of this kernel are compiled besides the usual: part of each build's name, on every machine that builds.

    Headers beside the baseline are found without an `include`.
    """

    include: tuple[Annotated[str, AfterValidator(_inside)], ...] = ()
    """Folders below the kernel's own, or links there to folders elsewhere."""
    sources: tuple[str, ...] = ()
    """More of the engine's sources, as paths that an `include` finds: what the baseline calls and does not define (a host function whose kernels
    stand in another file). Compiled before it in one go; of candidates only with those that are bound as the baseline is."""
    flags: tuple[Annotated[str, AfterValidator(check_flag)], ...] = ()
    defines: dict[str, str | int] = Field(default_factory=dict)
    language: Literal["c++", "c"] = "c++"
    """Of a CPU's baseline that has no entries of its own: "c" is compiled as C, and so is what is derived from it. Candidates written anew are C++."""
    binding: str | dict[Dtype, str] = ""
    """C++ expression for the entry, for all dtypes or by dtype, where a source's host function is a template or has another name:
    `Norm<128, bf16_t>::run`. It may be the whole call, in the spec's names (and `stream`, with plain pointers):
    `rms_norm<float><<<rows, 256, 0, stream>>>(out, input, weight, eps, columns)`, `at_norm(input, {columns}, at::kFloat, std::nullopt)`."""

    @model_validator(mode="after")
    def _are_names(self) -> BuildSettings:
        for text in self.binding.values() if isinstance(self.binding, dict) else [self.binding]:
            if not re.fullmatch(r"[\w:<>,&* ()+/%.?!=|{}\[\]\x22'-]{0,1000}", text):
                raise ValueError(
                    f"binding: {text[:80]!r} is no name of a function in C++, such as run or Norm<128, bf16_t>::run, and no call"
                )
        for source in self.sources:
            if source.startswith("/") or ".." in source.split("/") or not re.fullmatch(r"[\w.+/-]{1,200}", source):
                raise ValueError(f"sources: {source[:80]!r} is no path below an include folder")
        for name, value in self.defines.items():
            if not re.fullmatch(r"[A-Za-z_]\w{0,127}", name) or not re.fullmatch(r"[\w.:+-]{0,200}", str(value)):
                raise ValueError(f"defines: {name[:40]!r} = {str(value)[:40]!r} is no name and a number or a word")
        return self

    def flags_on(self, device: str) -> tuple[str, ...]:
        """For nvcc on "cuda", for g++ on "cpu", which is not given nvcc's own."""
        defines = [f"-D{name}={value}" if str(value) else f"-D{name}" for name, value in self.defines.items()]
        found: list[str] = []
        for flag in (*self.flags, *defines):
            host = re.fullmatch(_HOST_FLAGS, flag) is not None
            if device == "cuda":
                found += ["-Xcompiler", flag] if host else [flag]
            elif host or re.fullmatch(_BOTH_FLAGS, flag):
                found.append(flag)
        return (*found, *(part for source in self.sources for part in (INCLUDED, source)))


class Tensor(Frozen):
    """A pointer argument. `dtype="T"` is the workload's dtype; `shape` holds integer expressions of the axes."""

    kind: Literal["tensor"] = "tensor"
    name: Name
    role: Literal["input", "output", "inout", "workspace"]
    """A workspace is memory that the caller gives a call: it holds anything before, and nobody reads it afterwards."""
    shape: tuple[str, ...] = Field(min_length=1)
    dtype: Dtype | Literal["T"] = "T"
    strides: tuple[str, ...] = ()
    """Elements from one entry of each extent to the next, integer expressions of the axes (an axis may be a row's stride); empty: contiguous."""
    in_list: str = Field(default="", pattern=r"^([a-z][a-z0-9_]*(/\d{1,3})?)?$")
    """List of tensors in which a function that takes tensors gets it, beside those before and behind it of the same list; `name/2`: the third
    list of a list. Plain C takes each by itself."""
    values: tuple[Values, ...] = Field(default=ORDINARY_VALUES, min_length=1)
    touched: str | None = None
    """Elements that a call must really move, where that is fewer than the tensor holds (a gather's table)."""
    constant: bool = False
    """Inputs only: kept by a model between calls (weights, tables), so not written anew for each one."""
    used: Name | None = None
    """Outputs only: the output that says how much of the first extent, a capacity, a call has used; the rest is free."""
    ulps: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Outputs only: allowed error in unit roundoffs of the output's dtype; None takes the harness's default."""
    ulps_of_row: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Outputs of floats only: error allowed beside `ulps`, in unit roundoffs of the row's (last extent's) largest value."""

    @property
    def list_and_place(self) -> tuple[str, int | None]:
        """`in_list` in its parts: the list's name, "" without one, and which list of a list of lists it is, else None."""
        name, _, place = self.in_list.partition("/")
        return name, int(place) if place else None


class Size(Frozen):
    """An axis passed by value as `int64_t`."""

    kind: Literal["size"] = "size"
    name: Name


class Scalar(Frozen):
    """A constant passed by value, such as an epsilon."""

    kind: Literal["scalar"] = "scalar"
    name: OwnName
    ctype: Literal["float", "double", "int64_t", "void*"] = "float"
    """`void*`: an optional tensor that the call leaves away, a null pointer or None; the reference does not get it."""
    value: float = Field(allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits_its_type(self) -> Scalar:
        if self.ctype == "int64_t" and not (self.value.is_integer() and abs(self.value) < 2**63):
            raise ValueError(f"{self.value} is no int64_t")
        if self.ctype == "void*" and self.value:
            raise ValueError(
                f"{self.value} is no null pointer: an optional tensor that is left away has the value 0, one that is given is a Tensor"
            )
        if self.ctype == "float" and abs(self.value) > LARGEST_FLOAT:
            raise ValueError(f"{self.value} is too large for a float (ctype='double' holds it)")
        return self

    @property
    def given(self) -> float:
        """The value as a function gets it: rounded to a float, or a whole number."""
        if self.ctype == "int64_t":
            return int(self.value)
        return struct.unpack("f", struct.pack("f", self.value))[0] if self.ctype == "float" else self.value


Argument = Annotated[Tensor | Size | Scalar, Field(discriminator="kind")]


class Workload(Frozen):
    """One set of sizes and a dtype. Agents never see held-out workloads; the winner meets them last."""

    axes: dict[Name, Annotated[int, Field(gt=0)]]
    dtype: Dtype
    held_out: bool = False
    devices: tuple[Device, ...] = ("cuda", "cpu")
    timed: bool = True
    """False: checked for correctness only (one row, odd sizes), where a time would say nothing."""
    weight: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How often a program calls it at this size, in any unit; of a suite all that are timed have one, or none has."""

    @property
    def label(self) -> str:
        return f"{self.dtype} " + " ".join(f"{name}={size}" for name, size in self.axes.items())


def sizes(*axes: str, dtype: Dtype | None = None) -> Callable[..., Workload]:
    """`at(device, dtype, *extents, timed=True, held_out=False, weight=None)`: workloads over these axes; without its dtype where one is given here."""

    def at(device: Device, *given: Any, **more: Any) -> Workload:
        kind, extents = (dtype, given) if dtype else (given[0], given[1:])
        return Workload(axes=dict(zip(axes, extents, strict=True)), dtype=kind, devices=(device,), **more)

    return at


class Spec(Frozen):
    """An operation: what a candidate's entry point takes, what it is called with, and what it costs at least.

    The entry point is `extern "C" void <entry>_<dtype>(arguments in order[, cudaStream_t stream])`, one for each
    dtype of the spec; where the spec has a single dtype the suffix may be left out.
    """

    name: Name
    summary: str = Field(min_length=1)
    entry: Symbol | None = None
    axes: tuple[OwnName, ...] = Field(min_length=1)
    dtypes: tuple[Dtype, ...] = Field(min_length=1)
    arguments: tuple[Argument, ...] = Field(min_length=1)
    workloads: tuple[Workload, ...] = Field(min_length=1)
    default_baseline: dict[Device, str] = Field(default_factory=dict)
    flops: str = "0"
    """Floating-point operations of one call, an expression of the axes."""
    nans: bool = True
    """Whether a value that is no number must come out as none where the reference hands it on; False: nobody cares."""
    problem: bool = False
    """A PyTorch module to be made faster: candidates are a ModelNew, the arguments those of its forward."""
    build: BuildSettings = Field(default_factory=BuildSettings)
    zeros: tuple[OwnName, ...] = ()
    """Axes that a call may have of size zero (no tokens): each is a check, at the smallest workload's other sizes."""
    requires: tuple[str, ...] = ()
    """Expressions of axes that are at least 0 in every call: a table of `slots - 2*ids`, a power of two by `0 - (slots & (slots - 1))`."""
    library: str | None = None
    """What a user would call instead, as `package.function`, for the report."""

    @property
    def entry_name(self) -> str:
        return self.entry or self.name

    def entry_names(self, dtype: str) -> tuple[str, ...]:
        """The symbols to look for, best first."""
        suffixed = f"{self.entry_name}_{dtype}"
        return (suffixed, self.entry_name) if len(self.dtypes) == 1 else (suffixed,)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, Tensor))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role in ("input", "inout"))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role in ("output", "inout"))

    @property
    def poisoned(self) -> tuple[Tensor, ...]:
        """What holds nothing before a call."""
        return tuple(tensor for tensor in self.tensors if tensor.role in ("output", "workspace"))

    def bound(self, tensor: Tensor) -> Tensor | None:
        """The input below whose values this one's lie, where its first distribution says so."""
        kind, _, name = tensor.values[0].partition(":")
        return next((other for other in self.inputs if other.name == name), None) if kind == BELOW else None

    @property
    def scalars(self) -> dict[str, float]:
        """As a function gets them, by name, without pointers."""
        found = (argument for argument in self.arguments if isinstance(argument, Scalar) and argument.ctype != "void*")
        return {argument.name: argument.given for argument in found}

    def shape(self, tensor: Tensor, axes: dict[str, int]) -> tuple[int, ...]:
        return tuple(expression(extent, axes) for extent in tensor.shape)

    def strides(self, tensor: Tensor, axes: dict[str, int]) -> tuple[int, ...]:
        """In elements, one for each extent."""
        if tensor.strides:
            return tuple(expression(stride, axes) for stride in tensor.strides)
        shape = self.shape(tensor, axes)
        return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))

    def span(self, tensor: Tensor, axes: dict[str, int]) -> int:
        """Elements from a tensor's first to its last, what lies between its rows included."""
        shape = self.shape(tensor, axes)
        if not tensor.strides or 0 in shape:
            return math.prod(shape)
        return 1 + sum((n - 1) * stride for n, stride in zip(shape, self.strides(tensor, axes), strict=True))

    def overlaps(self, tensor: Tensor, axes: dict[str, int]) -> bool:
        """Whether two places of a tensor are one element: windows of a row, a row that is repeated."""
        reach = 0
        for stride, n in sorted(zip(self.strides(tensor, axes), self.shape(tensor, axes), strict=True)):
            if n > 1:
                if stride <= reach:
                    return True
                reach += (n - 1) * stride
        return False

    def dtype(self, tensor: Tensor, workload: Workload) -> str:
        return workload.dtype if tensor.dtype == "T" else tensor.dtype

    def tensor_bytes(self, tensor: Tensor, workload: Workload) -> int:
        """Bytes that one call must move for this tensor, in one direction."""
        count = expression(tensor.touched or "1", workload.axes)
        if not tensor.touched:
            count = math.prod(self.shape(tensor, workload.axes))
            count = min(count, self.span(tensor, workload.axes))  # of what overlaps each element once
        return count * DTYPE_BYTES[self.dtype(tensor, workload)]

    def read_bytes(self, workload: Workload) -> int:
        return sum(self.tensor_bytes(tensor, workload) for tensor in self.inputs)

    def write_bytes(self, workload: Workload) -> int:
        return sum(self.tensor_bytes(tensor, workload) for tensor in self.outputs)

    def suite(self, device: str, *, held_out: bool = False) -> tuple[Workload, ...]:
        return tuple(w for w in self.workloads if device in w.devices and w.held_out == held_out)

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
        for field, named in (("arguments", self.arguments), ("axes", self.axes), ("dtypes", self.dtypes)):
            names = [one if isinstance(one, str) else one.name for one in named]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{field}: {name!r} is named twice")
        self._check_tensors()
        for argument in self.arguments:
            if isinstance(argument, Size) and argument.name not in self.axes:
                raise ValueError(f"arguments: size {argument.name!r} is no axis (axes: {', '.join(self.axes)})")
        self._check_lists()
        for axis in self.zeros:
            if axis not in self.axes:
                raise ValueError(f"zeros: {axis!r} is no axis (axes: {', '.join(self.axes)})")
        for workload in self.workloads:
            self._check_workload(workload)
        self._check_suite()
        return self

    def _check_lists(self) -> None:
        seen, last = dict[str, int](), ""
        for argument in self.arguments:
            name, place = argument.list_and_place if isinstance(argument, Tensor) else ("", None)
            if name and name != last and name in seen:
                raise ValueError(f"arguments: the tensors of {name} do not stand one behind the other")
            before, now = seen.get(name, -1), -1 if place is None else place
            if name and now not in (before, before + (place is not None)):
                listed = name if place is None else f"{name}/{place}"
                raise ValueError(f"arguments: the lists of {name} are not counted from 0 on: {listed}")
            if name:
                seen[name] = now
            last = name

    def _check_tensors(self) -> None:
        if not self.outputs:
            raise ValueError("arguments: no tensor has role 'output' or 'inout', so there is nothing to check")
        for tensor in self.tensors:
            if tensor.constant and tensor.role != "input":
                raise ValueError(f"arguments: {tensor.name} is constant, which only an input can be")
            fields = Tensor.model_fields  # not what was set: a spec read from its own JSON has set all of them
            extra = [
                name
                for name in ("strides", "touched", "ulps", "ulps_of_row", "used", "values")
                if getattr(tensor, name) != fields[name].default
            ]
            if tensor.role == "workspace" and extra:
                raise ValueError(
                    f"arguments: {tensor.name} is a workspace, which has no {extra[0]}: nobody looks into it"
                )
            if tensor.strides and (len(tensor.strides) != len(tensor.shape) or self.problem):
                raise ValueError(
                    f"arguments: {tensor.name} has {len(tensor.strides)} strides and {len(tensor.shape)} extents"
                    if not self.problem
                    else f"arguments: {tensor.name} has strides, which an argument of a problem's forward has not"
                )
            dtypes = self.dtypes if tensor.dtype == "T" else (tensor.dtype,)
            for value in tensor.values:
                self._check_fits(tensor.name, value, dtypes)
                kind, _, axis = value.partition(":")
                if kind in AXIS_VALUES and axis not in self.axes:
                    raise ValueError(f"arguments: {tensor.name} draws indices from {axis!r}, which is no axis")
                if kind in AXIS_VALUES and any(dtype in SIGNIFICAND_BITS for dtype in dtypes):
                    raise ValueError(f"arguments: {tensor.name} draws indices, so it must be of an integer dtype")
            self._check_bound(tensor)
            if tensor.used is not None:
                states = next((other for other in self.outputs if other.name == tensor.used), None)
                if tensor.role != "output" or states is None or states.shape != ("1",) or "int" not in states.dtype:
                    raise ValueError(
                        f"arguments: {tensor.name}.used must name an output of shape ('1',) and an integer dtype, and only "
                        "an output can have it"
                    )
            for name in ("ulps", "ulps_of_row"):
                if (ulps := getattr(tensor, name)) is None:
                    continue
                if tensor.role == "input":
                    raise ValueError(f"arguments: {tensor.name} has {name}, which only an output can have")
                if name == "ulps_of_row" and not set(dtypes) <= SIGNIFICAND_BITS.keys():
                    raise ValueError(
                        f"arguments: {tensor.name} has ulps_of_row, which only an output of floats can have"
                    )
                for dtype in dtypes:
                    most = 2.0 ** (SIGNIFICAND_BITS.get(dtype, 8 * DTYPE_BYTES[dtype]) - BITS_THAT_COUNT)
                    if ulps > most:
                        raise ValueError(
                            f"arguments: {tensor.name} may be off by {ulps:g} {name}, and more than {most:g} in {dtype} "
                            "would let nearly anything pass"
                        )

    @staticmethod
    def _check_fits(name: str, value: str, dtypes: tuple[str, ...]) -> None:
        """Raises ValueError for a range that its dtype cannot hold."""
        kind, _, rest = value.partition(":")
        if kind not in ("range", "integers"):
            return
        for dtype in dtypes:
            low, high = LIMITS[dtype]
            least, most = (float(bound) for bound in rest.split(":"))
            if least < low or most > high + (kind == "integers"):
                raise ValueError(f"arguments: {name} draws {value}, and {dtype} holds {low:g} to {high:g}")

    def _check_bound(self, tensor: Tensor) -> None:
        """What `below:NAME` needs, so that every draw of the one fits the draw of the other that it is called with."""
        for value in tensor.values:
            kind, _, name = value.partition(":")
            if kind != BELOW:
                continue
            before = self.inputs[: self.inputs.index(tensor)] if tensor in self.inputs else ()
            bound = next((other for other in before if other.name == name), None)
            if bound is None:
                raise ValueError(
                    f"arguments: {tensor.name} draws below {name!r}, which is no input that stands before it in the arguments"
                )
            if tensor.values != (value,) or not (tensor.constant and bound.constant):
                raise ValueError(
                    f"arguments: {tensor.name} draws below {name}, so both must be constant, and that its only distribution: "
                    "they are drawn together"
                )
            for one in (tensor, bound):
                if any(dtype in SIGNIFICAND_BITS for dtype in (self.dtypes if one.dtype == "T" else (one.dtype,))):
                    raise ValueError(
                        f"arguments: {tensor.name} draws below {name}, so {one.name} must be of an integer dtype"
                    )
            if bound.shape not in (("1",), tensor.shape[: len(bound.shape)]):
                raise ValueError(
                    f"arguments: {tensor.name} draws below {name}, whose shape must be ('1',) or the first extents of its own"
                )

    def _check_workload(self, workload: Workload) -> None:
        if set(workload.axes) != set(self.axes):
            raise ValueError(f"workloads: {workload.label} must give exactly the axes {', '.join(self.axes)}")
        if workload.dtype not in self.dtypes:
            raise ValueError(f"workloads: {workload.label} has a dtype that the spec does not list")
        for text in self.requires:
            if _named("requires", text, workload.axes) < 0:
                raise ValueError(
                    f"workloads: {workload.label} is no call of this kernel, which needs {text} to be at least 0"
                )
        for tensor in self.tensors:
            shape = [_named(f"arguments: {tensor.name}.shape", extent, workload.axes) for extent in tensor.shape]
            for value in tensor.values:
                kind, _, axis = value.partition(":")
                held = LIMITS[self.dtype(tensor, workload)][1]
                if kind in AXIS_VALUES and workload.axes[axis] - (kind != "offsets") > held:
                    raise ValueError(
                        f"arguments: {tensor.name} draws {value} at {workload.label}, and its dtype holds {held:g} at most"
                    )
                if kind in ("distinct", "permutation") and math.prod(shape) > workload.axes[axis]:
                    raise ValueError(
                        f"arguments: {tensor.name} draws more than {axis} distinct values at {workload.label}"
                    )
            if min(shape) < 1:
                raise ValueError(f"arguments: {tensor.name}.shape is empty at {workload.label}")
            if tensor.touched:
                _named(f"arguments: {tensor.name}.touched", tensor.touched, workload.axes)
            for stride in tensor.strides:
                if _named(f"arguments: {tensor.name}.strides", stride, workload.axes) < 0:
                    raise ValueError(f"arguments: {tensor.name} has a negative stride at {workload.label}")
            if tensor.strides and self.overlaps(tensor, workload.axes):
                kind = tensor.values[0].partition(":")[0]
                if tensor.role != "input" or kind in ("distinct", "permutation", "offsets", "starts", BELOW, DRAWN):
                    raise ValueError(
                        f"arguments: rows of {tensor.name} overlap at {workload.label}, which only those of an input that is "
                        "drawn element by element may"
                    )
        _named("flops", self.flops, workload.axes)

    def _check_suite(self) -> None:
        if not any(not workload.held_out for workload in self.workloads):
            raise ValueError("workloads: every one is held out, so agents would have nothing to run")
        if not any(workload.timed and not workload.held_out for workload in self.workloads):
            raise ValueError("workloads: none that is not held out is timed, so nothing could be compared")
        for held_out in (False, True):
            timed = [workload for workload in self.workloads if workload.timed and workload.held_out == held_out]
            bare = [workload for workload in timed if workload.weight is None]
            if bare and len(bare) < len(timed):
                raise ValueError(
                    f"workloads: {bare[0].label} has no weight and others{' that are held out' if held_out else ''} have one: "
                    "give it one, or timed=False"
                )
        seen: set[tuple[str, str, tuple[int, ...]]] = set()
        for workload in self.workloads:
            for device in workload.devices:
                same = (device, workload.dtype, tuple(workload.axes[axis] for axis in self.axes))
                if same in seen:
                    raise ValueError(f"workloads: {workload.label} is listed twice for {device}")
                seen.add(same)
