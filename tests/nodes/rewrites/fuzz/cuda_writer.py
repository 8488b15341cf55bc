"""Writes one random CUDA kernel: elements, expressions, passes over a row and the reductions between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.nodes.rewrites.fuzz.trial import INPUTS, OUTPUTS

HEADERS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <stdint.h>\n"
FULL = "0xffffffff"
FOR_EACH = """\
template <typename I, typename F>
__device__ inline void for_each(I first, const int64_t last, const I step, F visit) {
  for (I at = first; at < last; at += step) visit(at);
}
"""
LONGEST = 1030
"""Elements of a row, in arrays that hold it."""
NEUTRAL = {"+": "0.0f", "fmaxf": "-INFINITY", "fminf": "INFINITY"}


OPERATIONS = ("leaf", "*", "+", "-", "fmaxf", "quotient", "exp", "helper", "choice", "tanh", "int", "sqrt", "double")


def joined(operator: str, a: str, b: str) -> str:
    return f"{a} + {b}" if operator == "+" else f"{operator}({a}, {b})"


@dataclass
class Form:
    """How one kernel's author writes: drawn once for a kernel, as people are consistent."""

    draw: st.DrawFn
    dtype: str
    element: str
    """`T` where the kernel is a template."""
    team: str
    """block, warp, thread or flat"""
    width: int
    index_type: str
    stride: str
    row: str
    addressing: str
    load: str
    reduction: str
    aligned: bool
    flag: str = ""
    """The last template parameter of a kernel with two forms: `true`, `false`, or `both` where the host chooses."""
    deduced: bool = False
    """Launches leave the template's type to the compiler."""
    macro: bool = False
    """Loops have their head in a macro."""
    packed: bool = False
    """What the kernel takes is in a struct."""

    @property
    def thread(self) -> str:
        return {"block": "threadIdx.x", "warp": "lane", "thread": "0", "flat": ""}[self.team]

    def one_of(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def sometimes(self) -> bool:
        return self.draw(st.booleans())


@dataclass
class Writer:
    """One kernel's text as it grows."""

    form: Form
    name: str
    lines: list[str] = field(default_factory=list)
    arrays: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    """Outputs that a pass has stored to."""
    helpers: dict[str, str] = field(default_factory=dict)
    scalars: list[str] = field(default_factory=list)
    """Results of reductions, and what was made of them; any thread of the row may read them."""
    exact: set[str] = field(default_factory=set)
    """Names and elements that no reduction has touched, which conditions may ask for."""
    counted: int = 0
    depth: int = 1
    dynamic: bool = False
    """Trees are in one array of dynamic shared memory."""
    used_buffer: bool = False
    favourites: list[str] = field(default_factory=lambda: ["x", "y", "any"])
    """What passes read, mostly the same, so that several read one element."""
    summed: bool = False
    inexact: bool = False
    outputs: tuple[str, ...] = ("y", "v")
    """Arrays that this kernel may write; it reads any element of the others."""

    @property
    def packed(self) -> bool:
        """Whether the kernel takes a struct; not where a loop of its own is called like one of the arrays."""
        return self.form.packed and not any("int s = " in line for line in self.lines)

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def fresh(self, stem: str) -> str:
        self.counted += 1
        return f"{stem}{self.counted}"

    # Elements.

    def at(self, array: str, index: str) -> str:
        """An element of a row, as this kernel's author addresses it."""
        self.arrays.add(array)
        if array in ("w", "s", "out", "index"):
            return f"{array}[{index}]"
        if self.form.team == "flat":
            if array == "pair":
                return f"pair[row * 2 * n + {index}]"
            return f"{array}[i]" if index == "column" else f"{array}[row * n + {index}]"
        if self.form.addressing == "pointers":
            return f"{array}_row[{index}]"
        if self.form.addressing == "moved":
            return f"{array}[{index}]"
        factor = "2 * " if array == "pair" else ""
        if self.form.addressing == "base":
            return f"{array}[{factor}base + {index}]"
        row = "(int64_t)row" if self.form.addressing == "wide" else "row"
        return f"{array}[{row} * {factor}n + {index}]"

    def loaded(self, array: str, index: str) -> str:
        place = self.at(array, index)
        if array in ("s", "out"):
            return place
        if array in INPUTS and self.form.load == "ldg":
            place = f"__ldg(&{place})"
        if self.form.dtype == "float32" and self.form.load not in ("function", "reference"):
            return place
        if self.form.load == "cast":
            return f"(float){place}"
        if self.form.load in ("function", "reference"):
            self.helpers["to_float"] = TO_FLOAT
            return f"to_float({place})"
        return f"static_cast<float>({place})"

    def stored(self, value: str) -> str:
        element = self.form.element
        if element == "float":
            return value
        if self.form.load == "cast":
            return f"({element})({value})"
        return f"static_cast<{element}>({value})"

    # Expressions.

    def expression(self, variables: list[str], depth: int = 2) -> str:
        form = self.form
        leaves = [*variables, *self.scalars, "0.5f", "1.25f"]
        if depth == 0:
            return form.one_of(*leaves)
        kind = form.one_of(*OPERATIONS)
        a = self.expression(variables, depth - 1)
        if kind == "leaf":
            return a
        if kind in "+-*":
            return f"({a} {kind} {self.expression(variables, depth - 1)})"
        if kind == "fmaxf":
            function = form.one_of("fmaxf", "fminf", "max")
            other = self.expression(variables, depth - 1)
            if function == "max":
                return f"max((float)({a}), (float)({other}))"
            return f"{function}({a}, {other})"
        if kind == "choice":
            exact = self.exact_among(variables)
            if not exact:
                return a
            operator = form.one_of(">", "<", ">=", "!=")
            return f"({form.one_of(*exact)} {operator} 0.0f ? {a} : {self.expression(variables, depth - 1)})"
        if kind == "int":
            return f"({a} * (float)(n % 7))"
        self.inexact = True
        if kind == "double":  # what is around it is computed in double, too, and fast_math makes floats of that
            return f"({a} * {form.one_of('0.5', '2.0', '1e-1')})"
        if kind == "quotient":
            return f"({a} / (1.0f + fabsf({self.expression(variables, depth - 1)})))"
        if kind == "exp":
            return f"{form.one_of('expf', '__expf', 'exp')}(-fabsf({a}))"
        if kind == "tanh":
            return f"tanhf({a})"
        if kind == "sqrt":
            return form.one_of(
                f"rsqrtf({a} * {a} + 1.0f)", f"(1.0f / sqrtf({a} * {a} + 1.0f))", f"(float)sqrt(fabs({a} * 1.0))"
            )
        self.helpers["act"] = form.one_of(*ACTS)
        return f"act({a})"

    def exact_among(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self.exact]

    def exact_expression(self, names: list[str]) -> str:
        a, b = self.form.one_of(*self.exact_among(names)), self.form.one_of(*self.exact_among(names))
        return self.form.one_of(f"{a} * 2.0f", f"{a} - {b}", f"fmaxf({a}, {b})", f"({a} > 0.0f ? {b} : 0.0f)", f"-{a}")

    # Passes over the row.

    def loop(self, body: list[str], index: str) -> None:
        """`body` for every element that the thread has."""
        form, index_type = self.form, self.form.index_type
        kind = form.one_of("for", "for", "for", "while") if form.team != "thread" else "for"
        kind = "for" if form.macro else kind
        if kind == "for" and not form.macro and form.team != "thread" and not any("continue;" in b for b in body):
            kind = form.one_of("for", "for", "for", "each")
        start, stride = form.thread, form.stride
        if form.team != "thread" and form.sometimes() and kind == "for":
            self.line(form.one_of("#pragma unroll", "#pragma unroll 4"))
        if kind == "while" and index[-1].isdigit():
            self.line(f"{index_type} {index} = {start};")
            head, body = f"while ({index} < n) {{", [*body, f"{index} += {stride};"]
        elif kind == "each":
            self.helpers["for_each"] = FOR_EACH
            head = f"for_each<{index_type}>({start}, n, {stride}, [&](const {index_type} {index}) {{"
        else:
            step = f"{index} += {stride}" if form.team != "thread" else f"++{index}"
            head = f"for ({index_type} {index} = {start}; {index} < n; {step}) {{"
            if form.macro and form.team != "thread":
                self.helpers["LOOP"] = f"#define LOOP(i, n) for ({index_type} i = {start}; i < (n); i += {stride})\n"
                head = f"LOOP({index}, n) {{"
        if head.startswith("while") and any("continue;" in b for b in body):
            body = [b.replace("continue;", f"{{ {index} += {stride}; continue; }}") for b in body]
        self.line(head)
        for text in body:
            self.line("  " + text)
        self.line("});" if kind == "each" else "}")

    def loads(self, index: str, body: list[str]) -> list[str]:
        """Declares variables with elements, and returns their names: `in...` where no reduction has touched them."""
        form = self.form
        names: list[str] = []
        choices = self.favourites
        others = [a for a in ("z", "x", "y", "v") if a not in self.outputs]
        for choice in form.draw(st.lists(st.sampled_from(choices), min_size=1, max_size=3, unique=True)):
            choice = form.one_of("x", "z", "w", "s", "pair", "gathered", "next", "index") if choice == "any" else choice
            name = self.fresh("in")
            if choice == "s":
                value = self.loaded("s", "row")
            elif choice == "pair":
                value = self.loaded("pair", form.one_of(index, f"n + {index}", f"2 * {index}", f"2 * {index} + 1"))
            elif choice == "gathered":
                value = self._gathered(index)
            elif choice == "next":
                place = form.one_of(f"n - 1 - {index}", f"({index} + 1) % n", f"{index} / 2", "0")
                choice = form.one_of(*others)
                value = self.loaded(choice, place)
            elif choice == "index":
                value = f"(float)({index} % 5)"
            else:
                value = self.loaded(choice, index)
            names.append(name)
            inline = form.sometimes() and choice != "index"
            if choice not in self.written and not (inline and choice in OUTPUTS):
                self.exact.add(value if inline else name)
            if inline:
                names[-1] = value  # read where it is used
                continue
            kind = form.one_of("const float", "float", *(("const auto",) if choice in ("x", "y") else ()))
            kind = "const float" if kind == "const auto" and "float" not in value and form.dtype != "float32" else kind
            if choice in ("x", "z", "y") and form.load == "reference":
                self.helpers["fetch"] = FETCH
                body += [f"float {name};", f"fetch({self.pointer(choice)}, {self.place(choice, index)}, {name});"]
                continue
            body.append(f"{kind} {name} = {value};")
        return names

    def place(self, array: str, index: str) -> str:
        """Where in `pointer(array)` an element is."""
        return self.at(array, index).partition("[")[2].removesuffix("]")

    def pointer(self, array: str) -> str:
        return self.at(array, "0").partition("[")[0]

    def _gathered(self, index: str) -> str:
        self.arrays |= {"index", "table"}
        place = f"table[index[row] * n + {index}]"
        return place if self.form.dtype == "float32" else f"static_cast<float>({place})"

    def body(self, index: str, sums: list[tuple[str, str]]) -> list[str]:
        """What happens to one element; folds into each of `sums`, names with operators."""
        form, body = self.form, list[str]()
        variables = self.loads(index, body)
        exact = self.exact_among(variables)
        if exact and form.draw(st.integers(0, 7)) == 7:
            body.append(f"if ({form.one_of(*exact)} < -1.5f) continue;")
        for _ in range(form.draw(st.integers(0, 2))):
            name, plain = self.fresh("t"), bool(exact) and form.sometimes()
            value = self.exact_expression(variables) if plain else self.expression(variables)
            body.append(f"{form.one_of('const float', 'float')} {name} = {value};")
            if plain:
                self.exact.add(name)
            if body[-1].startswith("float") and exact and form.sometimes():
                other = self.exact_expression(variables) if plain else self.expression([*variables, name], 1)
                body.append(f"if ({form.one_of(*exact)} > 0.25f) {name} = {other};")
            variables.append(name)
            exact = self.exact_among(variables)
        if form.flag and form.sometimes():
            name, branch = self.fresh("t"), form.one_of("if", "if constexpr")
            body.append(f"float {name} = {self.expression(variables, 1)};")
            body.append(f"{branch} (kFlag) {name} = {self.expression([*variables, name], 1)};")
            variables.append(name)
        if exact and form.draw(st.integers(0, 3)) == 3:
            body += self._asked(index, form.one_of(*exact), variables)
        for name, operator in sums:
            value = self.expression(variables, 1)
            if operator == "+" and form.sometimes():
                body.append(f"{name} += {value};")
            else:
                body.append(f"{name} = {joined(operator, name, value)};")
        stores = [o for o in self.outputs if form.sometimes()]
        stores = stores or ([] if sums else [form.one_of(*self.outputs)])
        for output in stores:
            store = self._store(output, index, self.expression(variables))
            if exact and form.draw(st.integers(0, 4)) == 4:
                store = f"if ({form.one_of(*exact)} > 0.0f) {store}"
            elif form.draw(st.integers(0, 6)) == 6:
                store = f"{{ {store} }}"
            body.append(store)
        for output in stores:
            self.written.add(output)
        return body

    def _asked(self, index: str, condition: str, variables: list[str]) -> list[str]:
        """Something that only some elements do: read another array, or change a variable that was loaded."""
        form = self.form
        changed = [v for v in variables if v.isidentifier()]
        if form.sometimes() and changed:
            name = form.one_of(*changed)
            return [f"float changed_{name} = {name};", f"if ({condition} > 0.5f) changed_{name} = {self.expression(variables, 1)};",
                    f"if (changed_{name} > 100.0f) changed_{name} = 100.0f;"]  # fmt: skip
        name = self.fresh("t")
        more = self.loaded(form.one_of("z", "x", "w", *(o for o in ("y", "v") if o in self.outputs)), index)
        variables.append(name)
        return [f"float {name} = 0.0f;", f"if ({condition} {form.one_of('>', '<')} 0.0f) {{",
                f"  const float more_{name} = {more};", f"  {name} = {self.expression([*variables, f'more_{name}'], 1)};", "}"]  # fmt: skip

    def _store(self, output: str, index: str, value: str) -> str:
        place = self.at(output, index)
        if self.form.element == "float" and self.form.draw(st.integers(0, 3)) == 3:
            return f"{place} {self.form.one_of('+=', '*=', '-=')} {value};"
        if self.form.load == "reference":
            self.helpers["put"] = PUT
            return f"put({self.pointer(output)}, {self.place(output, index)}, {value});"
        if self.form.draw(st.integers(0, 5)) == 5:
            return f"__stcs(&{place}, {self.stored(value)});"
        return f"{place} = {self.stored(value)};"

    def run_pass(self) -> None:
        form = self.form
        count = form.draw(st.integers(0, 2))
        sums = [(self.fresh("sum"), form.one_of("+", "fmaxf", "fminf")) for _ in range(count)]
        for name, operator in sums:
            self.line(f"float {name} = {NEUTRAL[operator]};")
        index = form.one_of("i", "c", self.fresh("col"))
        self.loop(self.body(index, sums), index)
        for name, operator in sums:
            self.summed = True
            self.reduce(name, operator)
        if form.team == "block" and form.draw(st.integers(0, 3)) == 3:
            self.line("__syncthreads();")

    def known_pass(self) -> None:
        """Several passes that belong together: a softmax in two orders, a norm in two passes, or running."""
        form, index = self.form, "i"
        kinds = ["softmax", "stored softmax", "online softmax", "norm", "moments"]
        kind = form.one_of(*kinds, *(["kept softmax"] if form.team in ("block", "warp") else []))
        output = form.one_of(*self.outputs)
        x = self.loaded(form.one_of("x", "z"), index)
        self.inexact = True
        if kind == "kept softmax":
            self._kept_softmax(x, output)
            return
        if kind in ("norm", "moments"):
            total, square = self.fresh("sum"), self.fresh("square")
            self.line(f"float {total} = 0.0f, {square} = 0.0f;")
            if kind == "moments":
                self.loop([f"const float e = {x};", f"{total} += e;", f"{square} += e * e;"], index)
                total, square = self._joined(total, "+"), self._joined(square, "+")
                value = f"({x} - {total} / n) * rsqrtf({square} / n + 1.0f)"
            else:
                self.loop([f"{total} += {x};"], index)
                total, mean = self._joined(total, "+"), self.fresh("mean")
                self.line(f"const float {mean} = {total} / n;")
                self.loop([f"const float e = {x} - {mean};", f"{square} += e * e;"], index)
                square = self._joined(square, "+")
                value = f"({x} - {mean}) * rsqrtf({square} / n + 1.0f) * {self.loaded('w', index)}"
        else:
            top, total = self.fresh("top"), self.fresh("total")
            self.line(f"float {top} = -INFINITY;")
            if kind == "online softmax":
                self.line(f"float {total} = 0.0f;")
                rescaled = [f"const float e = {x};", f"const float higher = fmaxf({top}, e);",
                            f"{total} = {total} * expf({top} - higher) + expf(e - higher);", f"{top} = higher;"]  # fmt: skip
                self.loop(rescaled, index)
                whole = self._joined(self._copy(top), "fmaxf")
                self.line(f"{total} = {top} == -INFINITY ? 0.0f : {total} * expf({top} - {whole});")
                top, total = whole, self._joined(total, "+")
            else:
                self.loop([form.one_of(f"{top} = fmaxf({top}, {x});", f"if ({x} > {top}) {top} = {x};")], index)
                top = self._joined(top, "fmaxf")
                self.line(f"float {total} = 0.0f;")
                kept = f"const float e = {form.one_of('expf', '__expf')}({x} - {top});"
                store = [f"{self.at(output, index)} = {self.stored('e')};"] if kind == "stored softmax" else []
                self.loop([kept, f"{total} += e;", *store], index)
                total = self._joined(total, "+")
            value = f"expf({x} - {top}) / {total}"
            if kind == "stored softmax":
                value = form.one_of(
                    f"{self.loaded(output, index)} / {total}", f"{self.loaded(output, index)} * (1.0f / {total})"
                )
        self.loop([f"{self.at(output, index)} = {self.stored(value)};"], index)
        self.written.add(output)

    def _kept_softmax(self, x: str, output: str) -> None:
        """One whose row is in an array of each thread, with minus infinity behind it or with nothing."""
        form, kept, top, total = self.form, self.fresh("kept"), self.fresh("top"), self.fresh("total")
        padded, items = form.sometimes(), LONGEST // (32 if form.team == "warp" else form.width) + 1

        def rounds(body: list[str], *, asked: bool = True) -> None:
            place = f"const {form.index_type} i = {form.thread} + k * {form.stride};"
            within = ["if (i < n) {", *("  " + line for line in body), "}"] if asked else body
            lines = within if not asked and not any("i < n" in line for line in body) else [place, *within]
            for line in [f"for (int k = 0; k < {items}; ++k) {{", *("  " + line for line in lines), "}"]:
                self.line(line)

        self.line(f"float {kept}[{items}];")
        self.line(f"float {top} = -INFINITY, {total} = 0.0f;")
        first = f"{kept}[k] = i < n ? {x} : -INFINITY;" if padded else f"{kept}[k] = {x};"
        rounds([first, f"{top} = fmaxf({top}, {kept}[k]);"], asked=not padded)
        top = self._joined(top, "fmaxf")
        rounds([f"{kept}[k] = expf({kept}[k] - {top});", f"{total} += {kept}[k];"], asked=not padded)
        total = self._joined(total, "+")
        rounds([f"{self.at(output, 'i')} = {self.stored(f'{kept}[k] / {total}')};"])
        self.written.add(output)

    def _copy(self, name: str) -> str:
        copied = self.fresh("copy")
        self.line(f"float {copied} = {name};")
        return copied

    def _joined(self, name: str, operator: str) -> str:
        """The name of what the row's threads hold together."""
        self.summed = True
        if self.form.team == "block":
            return getattr(self, f"_{self.form.reduction}")(name, operator)
        if self.form.team == "warp":
            down = self.form.sometimes()
            self._shuffle(name, operator, down=down)
            if down:
                self.line(f"{name} = __shfl_sync({FULL}, {name}, 0);")
        return name

    def vector_pass(self) -> None:
        """The row goes by in vectors, another distribution of elements over threads."""
        form = self.form
        if form.dtype == "bfloat16":
            return self.run_pass()
        kind, parts = ("float4", "xyzw") if form.dtype == "float32" else ("__half2", "xy")
        count = len(parts)
        output, row = form.one_of(*self.outputs), form.one_of("x", "z", *self.outputs)
        self.arrays |= {row, output}
        places = {a: self.at(a, "0") for a in (row, output)}
        self.line("__syncthreads();")
        self.line(f"for (int i = threadIdx.x; i < n / {count}; i += {form.stride}) {{")
        const = "const " if row in INPUTS else ""
        self.line(f"  {kind} pack = reinterpret_cast<{const}{kind}*>(&{places[row]})[i];")
        value = self.expression(["(float)pack.x"], 1)
        for part in parts:
            other = value.replace("pack.x", f"pack.{part}")
            self.line(f"  pack.{part} = {other if count == 4 else f'__float2half({other})'};")
        self.line(f"  reinterpret_cast<{kind}*>(&{places[output]})[i] = pack;")
        self.line("}")
        self.line("__syncthreads();")
        self.written.add(output)
        return None

    def line_buffer(self) -> None:
        """The row goes into shared memory, and is read there by the same thread or by another."""
        form, name, index = self.form, self.fresh("line"), "i"
        self.line(f"__shared__ float {name}[1100];")
        self.arrays.add("x")
        value = self.expression([self.loaded("x", index)], 1)
        self.loop([f"{name}[{index}] = {value};"], index)
        self.line("__syncthreads();")
        other = form.one_of(index, f"n - 1 - {index}", f"({index} + 1) % n")
        output = form.one_of(*self.outputs)
        self.loop([self._store(output, index, self.expression([f"{name}[{other}]", f"{name}[{index}]"], 1))], index)
        self.written.add(output)

    # Reductions.

    def reduce(self, name: str, operator: str) -> None:
        """Joins what the row's threads hold in `name`, and names the result for what comes."""
        form = self.form
        result = self._joined(name, operator)
        made = form.one_of("plain", "mean", "root", "shift")
        if made != "plain":
            self.inexact = True
            value = {"mean": f"{result} / n", "root": f"rsqrtf({result} * {result} / n + 1.0f)",
                     "shift": f"{result} * 0.5f + 1.0f"}[made]  # fmt: skip
            result = self._told(value)
        self.scalars.append(result)

    def _told(self, value: str) -> str:
        form, name = self.form, self.fresh("result")
        if form.team == "block" and form.draw(st.integers(0, 2)) == 2:
            self.line(f"__shared__ float {name};")
            self.line(f"if (threadIdx.x == 0) {form.one_of(f'{name} = {value};', f'{{ {name} = {value}; }}')}")
            self.line("__syncthreads();")
        else:
            self.line(f"const float {name} = {value};")
        return name

    def _tree(self, name: str, operator: str) -> str:
        form, slots = self.form, "buffer" if self.dynamic else self.fresh("partial")
        if not self.dynamic:
            self.line(f"__shared__ float {slots}[{form.width}];")
        elif self.used_buffer:
            self.line("__syncthreads();")
        self.used_buffer = True
        tid = "threadIdx.x"
        self.line(f"{slots}[{tid}] = {name};")
        first = form.sometimes()
        if not first:
            self.line("__syncthreads();")
        halved = form.one_of("s >>= 1", "s /= 2")
        whole = form.one_of("blockDim.x / 2", str(form.width // 2))
        self.line(f"for (int s = {whole}; s > 0; {halved}) {{")
        if first:
            self.line("  __syncthreads();")
        there, other = f"{slots}[{tid}]", f"{slots}[{tid} + s]"
        step = f"{there} += {other};" if operator == "+" else f"{there} = {joined(operator, there, other)};"
        self.line(f"  if ({tid} < s) {step}")
        if not first:
            self.line("  __syncthreads();")
        self.line("}")
        if first:
            self.line("__syncthreads();")
        kind = form.one_of("named", "told", *(() if self.dynamic else ("read",)))
        if kind == "read":
            return f"{slots}[0]"
        if kind == "told":
            return self._told(f"{slots}[0]")
        result = self.fresh("total")
        self.line(f"const float {result} = {slots}[0];")
        return result

    def _shuffle(self, name: str, operator: str, down: bool = False) -> None:
        """Every lane gets the result, or the first one where it goes `down`."""
        other = f"__shfl_{'down' if down else 'xor'}_sync({FULL}, {name}, offset)"
        step = f"{name} += {other};" if operator == "+" else f"{name} = {joined(operator, name, other)};"
        self.line(f"for (int offset = 16; offset > 0; offset {self.form.one_of('>>= 1', '/= 2')}) {step}")

    def _warps(self, name: str, operator: str) -> str:
        """Shuffles, one slot a warp, and then the first warp, every warp or one thread."""
        form, slots, result = self.form, self.fresh("slots"), self.fresh("total")
        warps = form.width // 32
        self.line(f"__shared__ float {slots}[32];")
        self._shuffle(name, operator, down=form.sometimes())
        self.line(f"if (threadIdx.x % 32 == 0) {slots}[threadIdx.x / 32] = {name};")
        self.line("__syncthreads();")
        lane = "threadIdx.x % 32"
        kind = form.one_of("every warp", "every thread", "first warp")
        if kind == "every thread":
            self.line(f"float {result} = {slots}[0];")
            one = joined(operator, result, f"{slots}[w]")
            self.line(f"for (int w = 1; w < {form.one_of('blockDim.x / 32', str(warps))}; ++w) {result} = {one};")
            return result
        self.line(
            f"{name} = {lane} < {form.one_of('blockDim.x / 32', str(warps))} ? {slots}[{lane}] : {NEUTRAL[operator]};"
        )
        if kind == "every warp":
            self._shuffle(name, operator)
            return name
        self.line("if (threadIdx.x < 32) {")
        self.depth += 1
        self._shuffle(name, operator, down=form.sometimes())
        self.depth -= 1
        self.line(f"  if (threadIdx.x == 0) {slots}[0] = {name};")
        self.line("}")
        self.line("__syncthreads();")
        self.line(f"const float {result} = {slots}[0];")
        return result

    def _function(self, name: str, operator: str) -> str:
        function = {"+": "block_sum", "fmaxf": "block_top", "fminf": "block_low"}[operator]
        other = joined(operator, "value", f"__shfl_xor_sync({FULL}, value, offset)")
        again = joined(operator, "value", "slots[warp]")
        last = (
            f"  value = slots[0];\n  for (int warp = 1; warp < blockDim.x / 32; ++warp) value = {again};\n"
            if self.form.sometimes()
            else f"  value = threadIdx.x % 32 < blockDim.x / 32 ? slots[threadIdx.x % 32] : {NEUTRAL[operator]};\n"
            f"  for (int offset = 16; offset > 0; offset /= 2) value = {other};\n"
        )
        self.helpers.setdefault(function, (
            f"__device__ float {function}(float value) {{\n  __shared__ float slots[32];\n"
            f"  for (int offset = 16; offset > 0; offset /= 2) value = {other};\n"
            f"  __syncthreads();\n  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;\n  __syncthreads();\n"
            f"{last}  return value;\n}}\n"
        ))  # fmt: skip
        if self.form.sometimes():
            self.line(f"{name} = {function}({name});")
            return name
        result = self.fresh("total")
        self.line(f"const float {result} = {function}({name});")
        return result

    # The whole kernel.

    def write_results(self) -> None:
        """What was reduced goes to memory, one number a row."""
        if not self.scalars or not self.form.sometimes():
            return
        self.arrays.add("out")
        value = self.expression([], 1)
        if self.form.team == "thread":
            self.line(f"out[row] = {value};")
        else:
            self.line(f"if ({self.form.thread} == 0) out[row] = {value};")


TO_FLOAT = """\
__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__half v) { return __half2float(v); }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
"""
FETCH = """\
template <typename V>
__device__ void fetch(const V* from, int64_t at, float& value) {
  value = static_cast<float>(from[at]);
}
"""
PUT = """\
template <typename V>
__device__ inline void put(V* to, int64_t at, const float value) { to[at] = static_cast<V>(value); }
"""
ACTS = (
    "__device__ float act(float v) { return v / (1.0f + expf(-v)); }\n",
    "__device__ __forceinline__ float act(const float v) {\n  const float cut = fminf(v, 3.0f);\n  return cut * cut;\n}\n",
    "__device__ float act(float v) {\n  if (v > 0.0f) return v;\n  return 0.01f * v;\n}\n",
    "template <typename V>\n__device__ V act(const V& v) { return v * (V)0.5f + (V)1.0f; }\n",
)
