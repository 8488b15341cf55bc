"""The way back into the user's own file: a winner in the file's form, or beside it with the one call that takes it, as a diff."""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from harness import backends
from harness.backends import form_of, is_python, python_module
from harness.capture.signature import list_exports, read_function
from harness.cpp import find_definitions, find_scopes, mask, without_dead_conditionals
from harness.device import facts as device_facts
from harness.export import guards, launcher, python_call
from harness.export.dropin import ExportError, infer
from harness.export.launch_header import space
from harness.export.launcher import with_include
from harness.export.tensor_forms import FORMS, Tensors
from harness.judge.builds import Brought, compile_build
from harness.judge.verification import first_error
from harness.records import DeviceFacts
from kernels.catalog import Kernel
from kernels.spec import Device, Scalar, Size, Spec, Tensor

ALIGNED_BYTES = 16
"""Alignment in bytes at which every judged tensor began."""


def patch_files(
    spec: Spec,
    own: str,
    baseline: str,
    winner: str,
    name: str,
    device: Device,
    headers: dict[str, str] | None = None,
    *,
    packaged: bool = False,
) -> dict[str, str]:
    """The user's files as they become, by path: `name`, whose text is `own`, or the one of `headers` that holds the launcher, and a new one
    beside it where the winner has another form.

    `baseline`: the text that the winner was measured against. packaged: the file is a module of a Python package. Raises ExportError where the file has changed since, and for a host function
    that cannot call the winner.
    """
    if own != baseline:
        raise ExportError(
            f"{name} is not the text that the winner was measured against: evaluate it anew, or name the file that was"
        )
    mine, theirs = ("python" if is_python(text) else form_of(text) for text in (own, winner))
    path = PurePosixPath(name)
    beside = str(path.with_name(f"{path.stem}.astrolabe{'.cuh' if device == 'cuda' else '.h'}"))
    if mine == theirs and not (mine == "plain" and _has_more(spec, own, winner, device)):
        return {name: _unreached_as_before(spec, own, winner, device) if mine == "plain" else winner}
    if mine == "python" and theirs == "plain" and python_module.uses_cute_dsl(own):
        raise ExportError(
            f"{name} is in CuTe DSL, whose @cute.jit function is compiled and calls no other language: take the winner as a package (--to), which "
            "the function that launches yours may call"
        )
    if mine == "python" and theirs == "plain":
        return python_call.patch(spec, own, winner, name, device, packaged=packaged)
    if theirs != "plain" or mine not in ("plain", *FORMS):
        raise ExportError(
            f"{name} is in the form {mine} and the winner in {theirs}: only a plain C winner is called from another form"
        )
    winner = _with_names_of_its_own(spec, winner, [own, *(headers or {}).values()])
    if mine != "plain" and device == "cuda" and path.suffix in HOST_SUFFIXES:
        beside = str(path.with_name(f"{path.stem}.astrolabe.h"))
        called = _calling(spec, own, winner, FORMS[mine], PurePosixPath(beside).name, device)
        return {name: called, **_apart(spec, winner, beside)}
    if mine != "plain":
        called = _calling(spec, own, winner, FORMS[mine], PurePosixPath(beside).name, device)
        return {name: called, beside: _header(spec, winner)}
    for where, text in {name: own, **(headers or {})}.items():
        header = str(PurePosixPath(where).with_name(PurePosixPath(beside).name))
        if found := launcher.with_call(
            spec, text, winner, device, PurePosixPath(header).name, (headers or {}).values()
        ):
            if spec.build.language == "c":
                return {where: found[0], **_from_c(spec, text, header, _header(spec, winner, found[1]))}
            return {where: found[0], header: _header(spec, winner, found[1])}
    function = next(iter(launcher.calls(spec, device).values())).function
    raise ExportError(
        f"neither {name} nor a header of its own calls or launches {function}: bind the function that does (build.binding), or take the "
        "winner as a package (--to)"
    )


HOST_SUFFIXES = (".cpp", ".cc", ".cxx")
"""Of files that no nvcc compiles."""


def _apart(spec: Spec, winner: str, header: str) -> dict[str, str]:
    """The winner in CUDA as a file of its own, to be built too, and the header by which a file of C++ calls it."""
    declared, text = list[str](), _header(spec, winner).replace("#pragma once\n", "")
    for entry in (name for dtype in spec.dtypes for name in spec.entry_names(dtype)):
        if found := re.search(rf"^inline (void {entry}\s*\([^()]*\))\s*\{{", text, re.MULTILINE):
            declared.append(f"{found[1]};")
            text = f"{text[: found.start()]}{text[found.start() + len('inline ') :]}"
    includes = [
        f"#include <{name}>" for name in ("cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h", "cuda_runtime.h", "stdint.h")
    ]
    space_text = "\n".join([f"namespace {space(spec)} {{", *dict.fromkeys(declared), "}", ""])
    return {
        header: "\n".join(
            [
                "// Found and measured by Astrolabe; its .cu beside it is to be built, too.",
                "#pragma once",
                *includes,
                space_text,
            ]
        ),
        header.removesuffix(".h") + ".cu": f'#include "{PurePosixPath(header).name}"\n{text}',
    }


def _unreached_as_before(spec: Spec, own: str, winner: str, device: Device) -> str:
    """The winner's text without what it changed in functions that its entry does not reach: nobody judged them."""
    named = dict.fromkeys(re.findall(r"^(?:[A-Za-z_][^\n;(]*[\s*&])?(\w+)\s*\(", mask(own), re.MULTILINE))
    defined = {name: found[0] for name in named if len(found := find_definitions(own, name)) == 1}
    bound = {call.function for call in launcher.calls(spec, device).values()}
    waiting = [*bound, *(entry for dtype in spec.dtypes for entry in spec.entry_names(dtype))]
    if not bound & defined.keys():
        return winner
    reached = set[str]()
    while waiting:
        if (name := waiting.pop()) not in reached and name in defined:
            reached.add(name)
            waiting += re.findall(r"\w+", _body(winner, name) or _body(own, name))
    for name in defined.keys() - reached:
        if len(found := find_definitions(winner, name)) == 1:
            before = own[defined[name].start : defined[name].end]
            winner = winner[: found[0].start] + before + winner[found[0].end :]
    return winner


def _body(text: str, name: str) -> str:
    """Of the function's only definition, "" without one."""
    found = find_definitions(text, name)
    return text[found[0].body : found[0].end] if len(found) == 1 else ""


def _from_c(spec: Spec, own: str, header: str, text: str) -> dict[str, str]:
    """A header that C includes, and the winner in a file of C++ to be built beside it."""
    functions = launcher.for_c(spec, own)
    linked = "".join(f'extern "C" {declared} {body}\n' for declared, body in functions)
    declared = "".join(f"{one};\n" for one, _ in functions)
    said = f"// Found and measured by Astrolabe; {PurePosixPath(header).with_suffix('.cpp').name} beside it is to be built, too.\n"
    return {
        header: f"{said}#pragma once\n#include <stddef.h>\n#include <stdint.h>\n{declared}",
        str(PurePosixPath(header).with_suffix(".cpp")): text.replace("#pragma once\n", "", 1) + linked,
    }


def _has_more(spec: Spec, own: str, winner: str, device: str) -> bool:
    """Whether a plain file has functions that others call, which a winner written anew leaves out."""
    if spec.build.binding:
        entries = backends.entry_of(backends.for_source(winner, device), spec, device)["entries"]
        return backends.with_entries(winner, entries) == winner
    return not launcher.find_exported(own) <= launcher.find_exported(winner)


def _with_names_of_its_own(spec: Spec, winner: str, texts: Sequence[str]) -> str:
    """The winner with another name for each function that `texts` define, too: a namespace does not hide theirs from a call in a template
    whose argument is of a global type (__half), so both would fit."""
    entries = {name for dtype in spec.dtypes for name in spec.entry_names(dtype)}
    called = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^<>(){};]*>\s*)?\(")
    for name in set(called.findall(mask(winner))).intersection(called.findall("\n".join(map(mask, texts)))) - entries:
        if find_definitions(winner, name) and any(find_definitions(text, name) for text in texts):
            winner = re.sub(rf"(?<!::)(?<!\.)(?<!->)\b{name}\b", f"{name}_of_winner", winner)
    return winner


def _header(spec: Spec, winner: str, more: str = "") -> str:
    """The winner as a header: in a namespace, its includes before that, its entries without C linkage, its macros gone behind it."""
    winner = without_dead_conditionals(winner)
    includes = re.findall(r"^[ \t]*#[ \t]*include.*$", winner, re.MULTILINE)
    rest = re.sub(r"^[ \t]*#[ \t]*include.*\n", "", winner, flags=re.MULTILINE)
    rest = re.sub(
        r'^extern "C" \{\n((?:[^{}\n]*;\n)+)\}',
        lambda m: re.sub(r"^", "static ", m[1].rstrip(), flags=re.MULTILINE),
        rest,
        flags=re.MULTILINE,
    )
    rest = re.sub(r'^extern "C" void', "inline void", rest, flags=re.MULTILINE)
    macros = list(dict.fromkeys(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", rest, re.MULTILINE)))
    if more:
        includes += ["#include <stdint.h>", "#include <type_traits>"]
        includes += [
            f"#include <{name}>"
            for name, used in (("iterator", "std::size("), ("string_view", "std::string_view("))
            if used in more
        ]
    return "\n".join(
        [
            "// Found and measured by Astrolabe; called by the file beside it.", "#pragma once", *dict.fromkeys(includes),
            *(f'#pragma push_macro("{name}")\n#undef {name}' for name in macros), f"namespace {space(spec)} {{", rest.strip("\n"),
            *(["", more.rstrip()] if more else []), "}", *(f'#pragma pop_macro("{name}")' for name in macros), "",
        ]
    )  # fmt: skip


def _calling(spec: Spec, own: str, winner: str, form: Tensors, header: str, device: str) -> str:
    """`own` with an include more, and a call of the winner before all else that its host function does."""
    bound = list(guards.find_bound(spec).values())
    handed = list_exports(own)
    functions = sorted({handed.get(one.function, one.function) for one in bound})
    found = [
        match
        for function in functions
        for match in re.finditer(rf"(\w[\w:<>&* ]*)\s+{function}\s*\(([^(){{}};]*)\)\s*\{{", own)
        if form.type in match[2]
    ]
    scopes = {one.scope for one in bound if one.scope}
    if len(found) > 1 and scopes:  # structs of one file all call theirs `run`
        found = [match for match in found if scopes.intersection(find_scopes(own, match.start()))]
    if len(found) != 1:
        raise ExportError(
            f"{len(found)} functions {' or '.join(functions)} take tensors in it, and one is to call the winner"
        )
    (host,) = found
    returns = re.sub(r"\b(static|inline)\b", "", host[1]).strip()
    made = [tensor for tensor in spec.tensors if tensor.role == "output"]
    if returns == "void":
        made = []
    elif not form.empty or not re.search(r"\bTensor>?$", returns):
        raise ExportError(
            f"{functions[0]} returns {returns}; only a function that writes into given tensors, or returns torch's, is patched"
        )
    (function,) = (
        functions if len(functions) == 1 else [one for one in functions if re.search(rf"\b{one}\s*\(", host[0])]
    )
    returned = len(read_function(own, function).made) if made else 0
    if returned > len(made):
        raise ExportError(
            f"{function} returns {returned} tensors and the spec has {len(made)} outputs: the winner does not make the others"
        )
    asked_of = guards.find_guards(spec, own, function, host.start())
    names, tensors = asked_of.names, {tensor.name for tensor in spec.tensors}
    names = _named(spec, host[2], form, made) if names is None else names | {t.name: f"{t.name}_" for t in made}
    optional = set(re.findall(r"\b[oO]ptional\s*<[^<>]*>[\s&]*(\w+)", host[2]))
    names = {
        name: f"(*{own_name})" if name in tensors and own_name in optional else own_name
        for name, own_name in names.items()
    }
    lines = _branch(spec, winner, names, form, device, made, asked_of.conditions)
    rest = re.compile(r"[ \t]*(//[^\n]*)?\n").match(own, host.end())
    cut = rest.end() if rest else host.end()
    more = "\n".join(f"  {line}" for line in lines)
    text = f"{own[:cut]}{more}\n{own[cut:]}" if rest else f"{own[:cut]}\n{more}\n{own[cut:]}"
    asked = f"#include {form.include}\n" if device == "cuda" and form.include not in own else ""
    if made and form.makes and form.makes not in own:
        asked += f"#include {form.makes}\n"
    return with_include(text, f'{asked}#include "{header}"\n', host.start())


def _named(spec: Spec, parameters: str, form: Tensors, made: Sequence[Tensor] = ()) -> dict[str, str]:
    """Argument of the spec -> the host function's parameter, or the variable that the branch makes. By their names, or in order.

    Raises ExportError."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", "", parameters, flags=re.DOTALL)
    given = [part.partition("=")[0].strip() for part in re.split(r",(?![^<]*>)", bare) if part.strip()]
    names = [found[1] for part in given if (found := re.search(r"(\w+)$", part))]
    known = {argument.name for argument in spec.arguments}
    if any(tensor.in_list for tensor in spec.tensors):
        return _in_lists(spec, names, given)
    given_by = [a for a in spec.arguments if not (isinstance(a, Tensor) and a in made)]
    own = {tensor.name: f"{tensor.name}_" for tensor in made}
    if {argument.name for argument in given_by if isinstance(argument, Tensor)} <= set(names):
        return {name: name for name in names if name in known} | own
    tensors = [a for a in given_by if isinstance(a, Tensor)]
    orders: tuple[Sequence[Tensor | Size | Scalar], ...] = (
        given_by,
        [a for a in given_by if not isinstance(a, Size)],
        tensors,
        [*tensors, *(a for a in given_by if isinstance(a, Scalar))],
    )
    for order in orders:
        if len(order) == len(names) and all(
            (isinstance(argument, Tensor) or getattr(argument, "ctype", "") == "void*") == (form.type in part)
            for argument, part in zip(order, given, strict=True)
        ):
            return {argument.name: name for argument, name in zip(order, names, strict=True)} | own
    raise ExportError(
        f"its host function's parameters ({', '.join(names)}) are not the spec's arguments, by name or in order"
    )


def _in_lists(spec: Spec, names: list[str], given: list[str]) -> dict[str, str]:
    """Of a host function that takes lists of tensors: argument of the spec -> parameter, or an element of one. Raises ExportError."""
    units = list(dict.fromkeys(_list_of(a) or a.name for a in spec.arguments if not isinstance(a, Size)))
    if len(units) != len(names):
        raise ExportError(
            f"its host function's parameters ({', '.join(names)}) are not the spec's arguments in order, each list as one ({', '.join(units)})"
        )
    parameter = dict(zip(units, names, strict=True))
    vectors = {
        unit
        for unit, part in zip(units, given, strict=True)
        if re.search(r"\b(vector|List|TensorList|ArrayRef)\b", part)
    }
    found, counts = dict[str, str](), dict[str, int]()
    for argument in spec.arguments:
        if isinstance(argument, Size):
            continue
        unit = _list_of(argument)
        if bool(unit) != ((unit or argument.name) in vectors):
            raise ExportError(
                f"{unit or argument.name} is {'no ' if unit else 'a '}list of tensors in its host function"
            )
        if isinstance(argument, Tensor) and unit:
            place = argument.list_and_place[1]
            held = parameter[unit] if place is None else f"{parameter[unit]}[{place}]"
            found[argument.name] = f"{held}[{counts.get(held, 0)}]"
            counts[held] = counts.get(held, 0) + 1
        else:
            found[argument.name] = parameter[argument.name]
    return found


def _list_of(argument: Tensor | Size | Scalar) -> str:
    return argument.list_and_place[0] if isinstance(argument, Tensor) else ""


def _lengths(spec: Spec, names: dict[str, str]) -> list[str]:
    """What must hold of the lists' lengths before an element is looked at."""
    counts = dict[str, int]()
    outer = dict[str, int]()
    for tensor in spec.tensors:
        name, place = tensor.list_and_place
        if name:
            held = names[tensor.name].rpartition("[")[0]
            counts[held] = counts.get(held, 0) + 1
            if place is not None:
                outer[held.rpartition("[")[0]] = place + 1
    return [f"{held}.size() == {count}" for held, count in (*outer.items(), *counts.items())]


def _branch(
    spec: Spec,
    winner: str,
    names: dict[str, str],
    form: Tensors,
    device: str,
    made: Sequence[Tensor],
    asked_of: dict[str, list[str]],
) -> list[str]:
    """made: outputs that the branch allocates and returns. asked_of: dtype -> what must hold beside the tensors."""
    given = [tensor for tensor in spec.tensors if tensor not in made]
    leader = names[given[0].name]
    axes = infer(spec, tuple(given))
    unknown = [a.name for a in spec.arguments if isinstance(a, Size) and a.name not in axes and a.name not in names]
    if unknown:
        raise ExportError(
            f"the size {unknown[0]} is read from no tensor's shape and is no parameter of its host function"
        )

    def extent(text: str) -> str:
        return re.sub(r"[a-z_]\w*", lambda word: f"{word[0]}_" if word[0] in spec.axes else word[0], text).replace(
            "//", "/"
        )

    asked = {".shape[": form.size, ".stride(": form.stride}
    shapes = {
        axis: re.sub(
            r"(\w+)(\.shape\[|\.stride\()(\d+)[\])]", lambda m: asked[m[2]].format(names[m[1]], m[3]), code
        ).replace("//", "/")
        for axis, code in axes.items()
    }
    absent = [a.name for a in spec.arguments if isinstance(a, Scalar) and a.ctype == "void*" and a.name in names]
    held = [f"{name[2:-1]}.has_value()" for name in names.values() if name.startswith("(*")]
    ranks = [*held, *_lengths(spec, names), *(f"{form.dims.format(names[t.name])} == {len(t.shape)}" for t in given)]
    plain = [
        fits
        for t in given
        for fits in (
            [f"{form.stride.format(names[t.name], at)} == {extent(one)}" for at, one in enumerate(t.strides)]
            or [form.contiguous.format(names[t.name])]
        )
    ]
    aligned = [f"reinterpret_cast<uintptr_t>({names[t.name]}.data_ptr()) % {ALIGNED_BYTES} == 0" for t in given]
    aligned += [f"{names[one]}.data_ptr() != {names[other]}.data_ptr()" for one, other in find_aliases(given)]
    sizes = [f"{form.size.format(names[t.name], at)} == {extent(one)}" for t in given for at, one in enumerate(t.shape)]
    lines = [f"if ({' && '.join(ranks)}) {{", *(f"  const int64_t {axis}_ = {code};" for axis, code in shapes.items())]
    lines += [
        f"  const bool {space(spec)}_fits = {' && '.join([*(f'!{names[a]}.has_value()' for a in absent), *guards.find_judged_numbers(spec, winner, names), *plain, *aligned, *sizes])};"
    ]
    for dtype in spec.dtypes:
        entry = next((name for name in spec.entry_names(dtype) if re.search(rf"\b{name}\s*\(", winner)), None)
        if entry is None:
            continue
        own = {t.name: dtype if t.dtype == "T" else t.dtype for t in spec.tensors}
        same = [*asked_of[dtype], *(form.dtype.format(names[t.name], form.names[own[t.name]]) for t in given)]
        types = pointers(winner, entry)
        values = []
        for at, argument in enumerate(spec.arguments):
            if isinstance(argument, Tensor):
                values.append(f"static_cast<{types[at]}>({names[argument.name]}.data_ptr())")
            elif isinstance(argument, Size):
                values.append(f"{argument.name}_" if argument.name in axes else names[argument.name])
            elif isinstance(argument, Scalar):
                exact = str(int(argument.value)) if argument.ctype == "int64_t" else repr(argument.value)
                here = f"static_cast<{argument.ctype}>({names.get(argument.name, exact)})"
                values.append("nullptr" if argument.ctype == "void*" else here)
        if device == "cuda":
            values.append(form.stream.replace("{leader}", leader))
        lines += [
            f"  if ({space(spec)}_fits && {' && '.join(same)}) {{",
            *(
                f"    auto {names[t.name]} = {form.empty.format(leader, ', '.join(map(extent, t.shape)), form.names[own[t.name]])};"
                for t in made
            ),
            f"    {space(spec)}::{entry}({', '.join(values)});",
            f"    return {'{' * (len(made) > 1)}{', '.join(names[t.name] for t in made)}{'}' * (len(made) > 1)};"
            if made
            else "    return;",
            "  }",
        ]
    return [*lines, "}"]


def find_aliases(given: Sequence[Tensor]) -> list[tuple[str, str]]:
    """Pairs of tensors, one of them written, that may not be the same memory: judged calls had each its own, and engines write in place."""
    written = [tensor.name for tensor in given if tensor.role != "input"]
    names = [tensor.name for tensor in given]
    return [
        (one, other)
        for one in written
        for other in names
        if other not in written or names.index(other) > names.index(one)
    ]


def pointers(winner: str, entry: str) -> list[str]:
    """Type of each parameter of an entry, as its text says it. Raises ExportError."""
    found = re.search(rf"\bvoid\s+{entry}\s*\(([^()]*)\)\s*\{{", winner)
    if found is None:
        raise ExportError(f"the winner's {entry} is not written as a function with its parameters in one place")
    kinds = [re.sub(r"\s+", " ", part.strip()) for part in found[1].split(",")]
    return [re.sub(r"\s*(__restrict__|__restrict)\b", "", re.sub(r"\w+$", "", kind)).strip() for kind in kinds]


def diff(before: dict[str, str], after: dict[str, str]) -> str:
    """As `git apply` takes it: a file that is not in `before` is a new one. before: with line ends as they are on disk, which stay."""
    made = []
    for name, text in after.items():
        there = name in before
        old = lines_of(before[name]) if there else []
        rows = difflib.unified_diff(old, _ended_as(old, text), f"a/{name}" if there else "/dev/null", f"b/{name}")
        body = "".join(row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows)
        if body:
            made.append(f"diff --git a/{name} b/{name}\n{'' if there else 'new file mode 100644' + chr(10)}{body}")
    return "".join(made)


def lines_of(text: str) -> list[str]:
    """Ends kept; split at line feeds alone, as diff and patch do."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _ended_as(old: list[str], text: str) -> list[str]:
    """The text's lines: one that was there ends as it did, a new one as most do."""
    new = lines_of(text.replace("\r\n", "\n"))
    same = [line.replace("\r\n", "\n") for line in old]
    windows = 2 * sum(line.endswith("\r\n") for line in old) > len(old)
    made = [line.replace("\n", "\r\n") if windows else line for line in new]
    for block in difflib.SequenceMatcher(None, same, new, autojunk=False).get_matching_blocks():
        made[block.b : block.b + block.size] = old[block.a : block.a + block.size]
    return made


def compile_patched(
    kernel: Kernel, own: str, after: dict[str, str], name: str, device: Device, architecture: str = "sm_90"
) -> str:
    """Compiles the user's file as it becomes, in its own form. own: its text, where a header of it is what changes. One clause; raises ExportError with the compiler's first complaint."""
    beside = {other: text for other, text in after.items() if other != name}
    if is_python(own):  # what is compiled is the source beside it
        name, own = next(((other, text) for other, text in beside.items() if not is_python(text)), (name, own))
        beside = {}
    text = after.get(name, own)
    module = backends.for_source(text, device)
    if missing := module.why_unavailable():
        return f"it was not compiled here: {missing}"
    try:
        facts = device_facts(device)
    except (RuntimeError, AssertionError):  # of a GPU that is not here: nvcc needs none
        facts = DeviceFacts(
            device="cuda", name=architecture, architecture=architecture, units=1, last_level_cache_bytes=1
        )
    settings, headers = kernel.spec.build, dict(kernel.headers)
    changed = {other: more.encode() for other, more in beside.items()}
    headers |= changed if name not in after else {PurePosixPath(other).name: more for other, more in changed.items()}
    entry = backends.entry_of(module, kernel.spec, device)
    brought = Brought(settings.flags_on(device), settings.include, headers) if hasattr(module, "FLAGS") else Brought()
    with tempfile.TemporaryDirectory(prefix="astrolabe-") as folder:
        build = compile_build("", text, module, Path(folder), facts, brought, **entry)
        for other, more in beside.items():
            if build.ok and other.endswith((".cpp", ".cu")):  # beside a file of C, or one of C++ that no nvcc compiles
                (apart := Path(folder, "beside")).mkdir()
                build = compile_build("", more, backends.for_source(more, device), apart, facts, brought)
    if re.search(r"cannot find -l(c10|torch)_cuda", build.log):
        return f"{name} was compiled with the winner, by {build.backend}, and not linked: torch has no CUDA here"
    if (absent := re.search(r"fatal error: (\S+): No such file", build.log)) and (
        absent[1] in own or absent[1] not in text  # else the patch brings it
    ):
        return f"it was not compiled here: {name} needs {absent[1]}, which is not here"
    if not build.ok:
        raise ExportError(f"{name} with the winner does not compile: {first_error(build.log)}")
    return f"{name} was compiled with the winner, by {build.backend}{f' for {facts.architecture}' if device == 'cuda' else ''}"
