"""Random CUDA row kernels that are right by construction: in bounds, without races, the same in every order of threads.

Rows of `n` elements are shared by the threads of a block, the lanes of a warp or by nobody, or every thread has one element of
the tensor. A kernel passes over its row several times; what passes sum up is joined over the row's threads and read
by the next. Conditions ask for what no reduction has touched, and quotients stay away from zero, so that another order of
summation changes last digits only.
"""

from __future__ import annotations

import re

from hypothesis import strategies as st

from tests.nodes.rewrites.fuzz.cuda_writer import HEADERS, Form, Writer
from tests.nodes.rewrites.fuzz.trial import ARRAYS, C_TYPES, INPUTS, Program, entry, spec_of


@st.composite
def forms(draw: st.DrawFn) -> Form:
    def pick(*choices: str) -> str:
        return draw(st.sampled_from(choices))

    dtype = pick("float32", "float16", "bfloat16")
    team = pick("block", "block", "block", "warp", "thread", "flat")
    width = draw(st.sampled_from((128, 256, 64, 32)))
    stride = {"block": pick("blockDim.x", "blockDim.x", str(width)), "warp": "32", "thread": "1", "flat": "1"}[team]
    rows = {"block": ("plain", "plain", "loop"), "warp": ("guard", "positive", "y"), "thread": ("guard",),
            "flat": ("guard", "positive", "stride", "grid", "items", "strided items")}[team]  # fmt: skip
    row = pick(*rows)
    return Form(
        dtype=dtype, element=pick(C_TYPES["cuda"][dtype], "T"), team=team, width=width,
        index_type=pick("int", "int64_t"), stride=stride, row=row,
        addressing=pick("plain", "wide", "pointers", "base", *(("moved",) if row != "loop" else ())),
        load=pick("static", "cast", "function", "ldg", "reference"), reduction=pick("tree", "warps", "function"),
        aligned=team == "block" and draw(st.integers(0, 3)) == 3, macro=draw(st.integers(0, 7)) == 7,
        flag=pick("", "", "", "true", "false", "both"), deduced=draw(st.booleans()), packed=draw(st.integers(0, 5)) == 5,
    )  # fmt: skip


def kernel(draw: st.DrawFn, form: Form, name: str, written: set[str]) -> Writer:
    """One kernel; `written` are outputs that launches before it have changed."""
    writer = Writer(draw, form, name, written)
    if form.team == "flat":
        leave = "continue;" if form.row in ("stride", "items", "strided items") else "return;"
        writer.lines += [text.replace("continue;", leave) for text in writer.body("column", [])]
        return writer
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 7)) if form.team == "block" else 0
        if kind == 7:
            writer.line_buffer()
        elif kind >= 5 and form.aligned:
            writer.vector_pass()
        elif kind == 4 or (kind == 0 and writer.chance(5)):
            writer.known_pass()
        else:
            writer.run_pass()
    writer.write_results()
    if writer.written == written and "out" not in writer.arrays:
        output, store = writer.outputs[0], writer.stored(writer.expression([writer.loaded("x", "i")]))
        writer.lines += writer.loop("i", "n", [f"{writer.at(output, 'i')} = {store}"])
        writer.written.add(output)
    return writer


def definition(writer: Writer) -> str:
    """The `__global__` function."""
    form, index_type = writer.form, writer.form.index_type
    names = [a for a in ARRAYS if a in writer.arrays]
    restrict = " __restrict__" if writer.chance() else ""
    parameters = [f"{'const ' if a in INPUTS else ''}{_element(form, a)}*{restrict} {a}" for a in names]
    bounds = f"__launch_bounds__({form.width}) " if writer.chance(4) else ""
    kinds = [*(["typename T"] if form.element == "T" else []), *(["bool kFlag"] if form.flag else [])]
    head = (f"template <{', '.join(kinds)}>\n" if kinds else "") + f"__global__ void {bounds}{writer.name}"
    before, around = _places(writer, index_type)
    if writer.used_buffer and writer.dynamic:
        before.insert(0, "extern __shared__ float buffer[];")
    rows = [a for a in names if len(ARRAYS[a].shape) == 2 and a != "table"]
    if form.team != "flat":
        before += _pointers(form, rows, index_type)
    body = ["  " + line for line in before + writer.lines]
    if around:
        if form.team == "block" and form.row == "loop":
            body.append("  __syncthreads();")
        body = [*around, *body, "  }"]
    listed = [*parameters, f"{index_type} rows", f"{index_type} n"]
    if not writer.packed:
        return f"{head}({', '.join(listed)}) {{\n" + "\n".join(body) + "\n}\n"
    template, kind = ("template <typename T>\n", "<T>") if form.element == "T" else ("", "")
    struct = f"{template}struct {writer.name}_arguments {{\n" + "".join(f"  {one};\n" for one in listed) + "};\n\n"
    members = re.compile(rf"(?<![\w.])({'|'.join([*names, 'rows', 'n'])})\b")
    text = members.sub(r"given.\1", "\n".join(body))
    return f"{struct}{head}({writer.name}_arguments{kind} given) {{\n{text}\n}}\n"


def _element(form: Form, array: str) -> str:
    kind = ARRAYS[array].dtype
    return form.element if kind == "T" else C_TYPES["cuda"][kind]


def _places(writer: Writer, index_type: str) -> tuple[list[str], list[str]]:
    """What says which row and element a thread has, and what opens a block around the rest."""
    form = writer.form
    if form.team == "block":
        if form.row == "loop":
            return [], [f"  for ({index_type} row = blockIdx.x; row < rows; row += gridDim.x) {{"]
        return [f"const {index_type} row = blockIdx.x;"], []
    flat = "blockIdx.x * blockDim.x + threadIdx.x"
    if form.team == "flat":
        place = [f"const {index_type} row = i / n;", f"const {index_type} column = i % n;"]
        if form.deduced:
            place = [f"{index_type} rest = i;", f"const {index_type} column = rest % n;", "rest /= n;"]
            place.append(f"const {index_type} row = rest;")
        if form.row == "grid":
            columns = f"const {index_type} column = blockIdx.x * blockDim.x + threadIdx.x;"
            first = f"const {index_type} row = blockIdx.y, i = row * n + column;"
            return [columns, "if (column >= n) return;", first], []
        if "items" in form.row:
            first = (
                f"({flat}) * 4 + item" if form.row == "items" else "(blockIdx.x * 4 + item) * blockDim.x + threadIdx.x"
            )
            head = ["  for (int item = 0; item < 4; ++item) {", f"  const {index_type} i = {first};"]
            return ["if (i >= rows * n) " + writer.one_of("continue;", "break;"), *place], head
        if form.row == "stride":
            step = "gridDim.x * blockDim.x"
            return place, [f"  for ({index_type} i = {flat}; i < rows * n; i += {step}) {{"]
        first = f"const {index_type} i = {flat};"
        if form.row == "positive":
            return place, [f"  {first}", "  if (i < rows * n) {"]
        return [first, "if (i >= rows * n) return;", *place], []
    places = [f"const {index_type} row = {flat};"]
    if form.row == "y":
        places = [f"const {index_type} row = blockIdx.x * blockDim.y + threadIdx.y;", "const int lane = threadIdx.x;"]
    elif form.team == "warp":
        places = [f"const {index_type} row = ({flat}) / 32;", "const int lane = threadIdx.x % 32;"]
    if form.row == "positive":
        return [], [*("  " + p for p in places), "  if (row < rows) {"]
    return [*places, "if (row >= rows) return;"], []


def _pointers(form: Form, rows: list[str], index_type: str) -> list[str]:
    wide = "(int64_t)row" if index_type == "int" and form.load == "cast" else "row"
    if form.addressing == "base":
        return [f"const {index_type} base = row * n;"]
    if form.addressing not in ("pointers", "moved"):
        return []
    found = []
    for array in rows:
        factor = "2 * " if array == "pair" else ""
        if form.addressing == "moved":
            found.append(f"{array} += {wide} * {factor}n;")
        else:
            const = "const " if array in INPUTS else ""
            found.append(f"{const}{_element(form, array)}* {array}_row = {array} + {wide} * {factor}n;")
    return found


def launch(writer: Writer, number: int) -> list[str]:
    """The host's lines."""
    form = writer.form
    per_block = {"block": 1, "warp": form.width // 32, "thread": form.width, "flat": form.width}[form.team]
    count = "rows * n" if form.team == "flat" else "rows"
    width, lines = str(form.width), list[str]()
    if writer.chance():
        width = f"threads{number}"
        lines.append(f"const int {width} = {form.width};")
    per_block *= 4 if "items" in form.row else 1
    grid = count if per_block == 1 else f"({count} + {per_block - 1}) / {per_block}"
    if form.row in ("loop", "stride"):
        grid = "rows < 3 ? rows : 3" if form.row == "loop" else "3"
    if form.row == "y":
        lines += [f"dim3 block{number}(32, {form.width // 32});"]
        width = f"block{number}"
    elif form.row == "grid":
        lines += [f"dim3 grid{number}((n + {form.width - 1}) / {form.width}, rows);"]
        grid = f"grid{number}"
    elif writer.chance():
        lines += [f"dim3 grid{number}({grid});", f"dim3 block{number}({width});"]
        grid, width = f"grid{number}", f"block{number}"
    shared = f"{form.width} * sizeof(float)" if writer.used_buffer and writer.dynamic else "0"
    arguments = ", ".join([*(a for a in ARRAYS if a in writer.arrays), "rows", "n"])
    if writer.packed:
        kind, name = C_TYPES["cuda"][form.dtype] if form.element == "T" else "", f"{writer.name}_arguments"
        sizes = [f"({form.index_type})rows", f"({form.index_type})n"]
        listed = ", ".join([*(a for a in ARRAYS if a in writer.arrays), *sizes])
        lines.append(f"const {name}{f'<{kind}>' if kind else ''} arguments{number} = {{{listed}}};")
        arguments = f"arguments{number}"
    own = form.element == "T" and any(ARRAYS[a].dtype == "T" for a in writer.arrays) and form.deduced and not form.flag

    def call(flag: str) -> str:
        kinds = [*([C_TYPES["cuda"][form.dtype]] if form.element == "T" and not own else []), *([flag] if flag else [])]
        listed = f"<{', '.join(kinds)}>" if kinds else ""
        return f"{writer.name}{listed}<<<{grid}, {width}, {shared}, stream>>>({arguments});"

    if form.flag != "both":
        return [*lines, call(form.flag)]
    return [*lines, "if (n % 2 == 0) {", f"  {call('true')}", "} else {", f"  {call('false')}", "}"]


TIMED = ((4096, 4096), (32, 32768), (65536, 128), (16384, 8), (8192, 1024))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    form = draw(forms())
    writers = [kernel(draw, form, "first_kernel", set())]
    if draw(st.integers(0, 5)) == 5:
        other = draw(forms())
        other.macro = False
        other.dtype, other.aligned = form.dtype, form.aligned and other.team == "block"
        other.element = "T" if other.element == "T" else C_TYPES["cuda"][form.dtype]
        writers.append(kernel(draw, other, "second_kernel", writers[0].written))
    used = {a for w in writers for a in w.arrays}
    even = form.aligned or draw(st.integers(0, 3)) == 3
    spec = spec_of("cuda", form.dtype, used, draw(st.sampled_from(TIMED)), even)
    helpers = {name: text for w in writers for name, text in w.helpers.items()}
    lines = [line for number, w in enumerate(writers) for line in launch(w, number)]
    host = entry("cuda", spec, "".join(f"  {line}\n" for line in lines))
    parts = [HEADERS, *helpers.values(), *(definition(w) for w in writers), host]
    exact = not any(w.summed or w.inexact for w in writers)
    return Program("cuda", "\n".join(parts), spec, aligned=form.aligned, even=even, exact=exact)
