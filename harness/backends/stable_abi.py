"""C++ or CUDA over torch's stable ABI (torch::stable::Tensor), vLLM's `libtorch_stable`.

The source registers an operator by STABLE_TORCH_LIBRARY (its schema too), or defines a function named as the entry, or the one that the spec's `build.binding`
names, for which a registration is added here; its parameters' names and types are read from its text. Called as a torch extension's operator is.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from harness.backends import (
    FUNCTION_BY_DTYPE,
    Compiled,
    call_wrapper,
    cuda,
    form_of,
    is_python,
    together,
    torch_extension,
)
from harness.records import DeviceFacts

SUFFIX = ".cu"
"""Suffix of sources; on a CPU compile() renames them."""
DEVICE = "any"
PYTHON_SIDE = True
BINDS = True
ARTEFACT = "candidate.so"
FLAGS = ("-std=c++20", "-O3")
KINDS = (
    (r"vector<.*vector<|ArrayRef<.*vector<", None), (r"(vector|ArrayRef)<.*Tensor|TensorList", "Tensor[]"), (r"optional<.*Tensor", "Tensor?"),
    (r"(vector|ArrayRef)<[^>]*int|IntArrayRef", "int[]"), (r"optional<[^>]*(double|float)", "float?"), (r"optional<[^>]*int", "int?"), (r"optional<\s*bool", "bool?"),
    (r"Tensor", "Tensor"), (r"\bint64_t\b|\bint\b", "int"), (r"\bdouble\b|\bfloat\b", "float"),
    (r"\bbool\b", "bool"), (r"string", "str"),
)  # fmt: skip
"""Pattern of a parameter's C++ type -> its type in a schema."""

_FIRST = """
#include <tuple>
#include <utility>
template <size_t count> torch::stable::Tensor candidate_first(torch::stable::Tensor one) { return one; }
template <class All, size_t... at> auto candidate_these(const All& all, std::index_sequence<at...>) { return std::make_tuple(std::get<at>(all)...); }
template <size_t count, class... Of> auto candidate_first(const std::tuple<Of...>& all) {
  if constexpr (count == 1) return std::get<0>(all);
  else return candidate_these(all, std::make_index_sequence<count>{});
}
"""
"""The first `count` of what a call returns: nobody looks at the rest."""


def takes(text: str) -> bool:
    return not is_python(text) and form_of(text) == "stable"


def why_unavailable() -> str:
    return torch_extension.why_unavailable()


def identity(facts: DeviceFacts) -> str:
    return torch_extension.toolchain(facts, f"stable {' '.join(FLAGS)}")


def schema(text: str, function: str, entry: str) -> str:
    """The operator's schema, from the function's definition. Raises ValueError where that is not found or has a type that has none."""
    found = re.search(
        rf"(?:([\w:<>, ]*)\s)?\b{re.escape(function)}\s*\(([^)]*)\)\s*\{{",
        text := re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL),
    )
    if found is None:
        raise ValueError(
            f"the source neither registers {entry} by STABLE_TORCH_LIBRARY nor defines a function {function}(...)"
        )
    parameters, written = [], 0
    for parameter in re.split(r",(?![^<]*>)", found[2]):
        said = parameter.partition("=")[0].strip()
        name = re.search(r"(\w+)$", said)
        kind = next((kind for pattern, kind in KINDS if re.search(pattern, said)), None)
        if name is None or kind is None:
            raise ValueError(
                f"{function} has a parameter {said!r}, for which no operator's schema has a type: write the whole call (build.binding)"
            )
        if kind == "Tensor" and "&" in said and not re.search(r"\bconst\b", said):
            kind, written = f"Tensor({chr(97 + written)}!)", written + 1
        parameters.append(f"{kind} {name[1]}")
    returned = len(re.findall(r"\bTensor\b", found[1] or ""))
    returns = "Tensor" if returned == 1 else f"({', '.join(['Tensor'] * returned)})"
    return f"{entry}({', '.join(parameters)}) -> {returns}"


def with_registration(text: str, entry: str, binding: str, key: str) -> str:
    """The source with a registration of the entry where it has none. Raises ValueError."""
    asked = json.loads(binding) if binding else ""
    if isinstance(asked, dict) and "call" in asked:
        returned = len(asked["returns"])
        tensor = "torch::stable::Tensor"
        returns = tensor if returned == 1 else f"std::tuple<{', '.join([tensor] * returned)}>" if returned else "void"
        first = f"candidate_first<{returned}>" if returned else "static_cast<void>"
        asked["call"] = {dtype: f"{first}({call})" for dtype, call in asked["call"].items()}
        text += _FIRST + call_wrapper(f"{entry}_call", asked, tensor, "torch::headeronly::ScalarType", returns)
        asked = f"{entry}_call"
    if isinstance(asked, dict):
        raise ValueError(FUNCTION_BY_DTYPE)
    if not asked and re.search(r"^[ \t]*STABLE_TORCH_LIBRARY(_FRAGMENT)?\b", text, re.MULTILINE):
        return text
    function = asked or entry
    return (
        f"{text}\n#include <torch/csrc/stable/library.h>\n"
        f'STABLE_TORCH_LIBRARY_FRAGMENT(candidate, m) {{ m.def("{schema(text, function, entry)}"); }}\n'
        f'STABLE_TORCH_LIBRARY_IMPL(candidate, {key}, m) {{ m.impl("{entry}", TORCH_BOX(&{function})); }}\n'
    )


def compile(
    source: Path,
    artefact: Path,
    facts: DeviceFacts,
    timeout_s: float,
    entry: str,
    binding: str = "",
    flags: tuple[str, ...] = (),
) -> Compiled:
    on_gpu = facts.device == "cuda"
    try:
        text = with_registration(source.read_text(), entry, binding, "CUDA" if on_gpu else "CPU")
    except ValueError as error:
        return Compiled(False, f"error: {error}")
    source = source.with_suffix(".cu" if on_gpu else ".cpp")
    source.write_text(text)
    command, readable = torch_extension.command_for(
        source,
        artefact,
        facts,
        [*together(FLAGS, flags)],
        torch_extension.LINKS,
        ["-DUSE_CUDA", "--expt-relaxed-constexpr"],
    )
    return cuda.run(command, source, artefact, readable, timeout_s, on_gpu=on_gpu)
