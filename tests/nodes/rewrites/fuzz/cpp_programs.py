"""Random C++ programs of one thread: passes over rows in the forms that people write them in.

Each pass goes over the tensors' rows and elements, by two loops, by a flat one, down the columns, with pointers that walk or
through small functions, and may sum up over a row or a column.
Conditions ask for inputs alone and quotients stay away from zero, so that another order of summation changes last digits only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.nodes.rewrites.fuzz.trial import C_TYPES, OUTPUTS, Program, entry, spec_of

HEADERS = "#include <algorithm>\n#include <cmath>\n#include <cstdint>\n#include <limits>\n"
NEUTRAL = {"+": "0.0f", "max": "-INFINITY", "min": "INFINITY"}
ACTS = (
    "static float act(float v) { return v / (1.0f + expf(-v)); }\n",
    "static inline float act(const float v) {\n  if (v <= -3.0f) return 0.0f;\n  if (v >= 3.0f) return v;\n"
    "  return v * (v + 3.0f) / 6.0f;\n}\n",
    "template <typename V>\nstatic V act(V v) { return v * V(0.5) + V(1.0); }\n",
    "#define act(v) ((v) > 0.0f ? (v) : 0.01f * (v))\n",
)
MAX = "#define MAX(a, b) ((a) > (b) ? (a) : (b))\n"
TIMED = ((1024, 4096), (64, 1000), (8, 131072), (4096, 64))


@dataclass
class Writer:
    draw: st.DrawFn
    dtype: str
    element: str
    index_type: str
    pointers: bool
    """Rows are named by pointers."""
    lines: list[str] = field(default_factory=list)
    arrays: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    scalars: list[str] = field(default_factory=list)
    """Sums over the row, in sight of the passes that follow over the same row."""
    helpers: dict[str, str] = field(default_factory=dict)
    counted: int = 0
    summed: bool = False
    inexact: bool = False

    def one_of(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(1, one_in)) == one_in

    def fresh(self, stem: str) -> str:
        self.counted += 1
        return f"{stem}{self.counted}"

    def read(self, place: str, array: str) -> str:
        if self.dtype == "float32" or array in ("s", "out", "sums"):
            return place
        return f"{self.one_of('static_cast<float>', '(float)', 'float')}({place})"

    def stored(self, value: str) -> str:
        return value if self.element == "float" else f"static_cast<{self.element}>({value})"

    def at(self, array: str, row: str, index: str) -> str:
        self.arrays.add(array)
        if array in ("w", "sums"):
            return f"{array}[{index}]"
        if array in ("s", "out"):
            return f"{array}[{row}]"
        factor = "2 * " if array == "pair" else ""
        if self.pointers:
            return (
                f"({array} + {row} * {factor}n)[{index}]" if self.chance(4) else f"{array}[{row} * {factor}n + {index}]"
            )
        return f"{array}[{row} * {factor}n + {index}]"

    def element_of(self, row: str, index: str) -> str:
        """An operand of one element."""
        choice = self.one_of("x", "z", "w", "y", "v", "s", "pair", "table", "next")
        if choice == "table":
            self.arrays |= {"table", "index"}
            return self.read(f"table[index[{row}] * n + {index}]", "table")
        if choice == "pair":
            place = self.one_of(index, f"n + {index}", f"2 * {index}", f"2 * {index} + 1")
            return self.read(self.at("pair", row, place), "pair")
        if choice == "next":
            place = self.one_of(f"n - 1 - {index}", f"({index} + 1) % n", f"{index} / 2", "0")
            return self.read(self.at("z", row, place), "z")
        return self.read(self.at(choice, row, index), choice)

    def expression(self, names: list[str], depth: int = 2) -> str:
        leaves = [*names, *self.scalars, "0.5f", "1.25f"]
        if depth == 0:
            return self.one_of(*leaves)
        kind = self.one_of("leaf", "*", "+", "-", "max", "quotient", "exp", "act", "choice", "tanh", "root", "n")
        a = self.expression(names, depth - 1)
        if kind == "leaf":
            return a
        if kind in "+-*":
            return f"({a} {kind} {self.expression(names, depth - 1)})"
        if kind == "n":
            return f"({a} * (float)(n % 7))"
        if kind == "max":
            b, function = self.expression(names, depth - 1), self.one_of("fmaxf", "std::max<float>", "fminf", "MAX")
            if function == "MAX":
                self.helpers["MAX"] = MAX
            return f"{function}({a}, {b})"
        if kind == "choice":
            exact = [name for name in names if name.startswith("in")]
            if not exact:
                return a
            return f"({self.one_of(*exact)} {self.one_of('>', '<=', '!=')} 0.0f ? {a} : {self.expression(names, depth - 1)})"
        self.inexact = True
        if kind == "quotient":
            return f"({a} / (1.0f + {self.one_of('fabsf', 'std::fabs')}({self.expression(names, depth - 1)})))"
        if kind == "exp":
            return f"{self.one_of('expf', 'std::exp')}(-fabsf({a}))"
        if kind == "tanh":
            return f"{self.one_of('tanhf', 'std::tanh')}({a})"
        if kind == "root":
            return f"(1.0f / {self.one_of('sqrtf', 'std::sqrt')}({a} * {a} + 1.0f))"
        self.helpers["act"] = self.one_of(*ACTS)
        return f"act({a})"

    def body(self, row: str, index: str, sums: list[tuple[str, str]]) -> list[str]:
        lines, names = list[str](), list[str]()
        for _ in range(self.draw(st.integers(1, 3))):
            value = self.element_of(row, index)
            exact = not any((o in self.written and f"{o}[" in value) or f"({o} +" in value for o in OUTPUTS)
            name = self.fresh("in" if exact else "old")
            lines.append(f"{self.one_of('const float', 'float')} {name} = {value};")
            names.append(name)
        exact = [name for name in names if name.startswith("in")]
        if exact and self.chance(8):
            lines.append(f"if ({self.one_of(*exact)} < -1.5f) continue;")
        if self.chance(2):
            name = self.fresh("t")
            lines.append(f"float {name} = {self.expression(names)};")
            if exact and self.chance(3):
                lines.append(f"if ({self.one_of(*exact)} > 0.25f) {name} = {self.expression([*names, name], 1)};")
            names.append(name)
        for name, operator in sums:
            value = self.expression(names, 1)
            step = {"+": f"{name} += {value};", "max": f"{name} = fmaxf({name}, {value});"}.get(operator)
            lines.append(step or f"{name} = std::min<float>({name}, {value});")
        if not sums or self.chance(2):
            output = self.one_of("y", "v")
            place = self.at(output, row, index)
            value = self.expression(names)
            store = f"{place} = {self.stored(value)};"
            if self.element == "float" and self.chance(4):
                store = f"{place} {self.one_of('+=', '*=', '-=')} {value};"
            if exact and self.chance(5):
                store = f"if ({self.one_of(*exact)} > 0.0f) {{ {store} }}"
            lines.append(store)
            self.written.add(output)
        return lines

    # Passes.

    def loop(self, index: str, bound: str, body: list[str], start: str = "0") -> list[str]:
        kind = self.one_of(self.index_type, "int")
        if self.chance(6) and not any("continue;" in line for line in body):
            turned = [f"{kind} {index} = {start};", f"while ({index} < {bound}) {{", *("  " + b for b in body)]
            return ["{", *("  " + line for line in [*turned, f"  ++{index};", "}"]), "}"]
        step = self.one_of(f"++{index}", f"{index}++")
        return [f"for ({kind} {index} = {start}; {index} < {bound}; {step}) {{", *("  " + b for b in body), "}"]

    def rows_pass(self) -> list[str]:
        """Rows, and within each one or more loops over its elements."""
        self.scalars = []
        inner: list[str] = []
        row = self.one_of("r", self.fresh("row"))
        for _ in range(self.draw(st.integers(1, 3))):
            sums = [(self.fresh("sum"), self.one_of("+", "max", "min")) for _ in range(self.draw(st.integers(0, 2)))]
            for name, operator in sums:
                kind = "double" if operator == "+" and self.chance(4) else "float"
                inner.append(f"{kind} {name} = {NEUTRAL[operator]};")
            inner += self.loop("i", "n", self.body(row, "i", sums))
            for name, operator in sums:
                self.summed = True
                self.scalars.append(self._made_of(name, operator, inner))
        if self.scalars and self.chance(2):
            self.arrays.add("out")
            inner.append(f"out[{row}] = {self.expression([], 1)};")
            self.written.add("out")
        self.scalars = []
        return self.loop(row, "rows", inner)

    def _made_of(self, name: str, operator: str, lines: list[str]) -> str:
        made = self.one_of("plain", "mean", "root")
        if made == "plain":
            return f"(float){name}"
        result, self.inexact = self.fresh("result"), True
        value = f"{name} / n" if made == "mean" else f"1.0f / std::sqrt((float)({name} * {name} / n) + 1.0f)"
        lines.append(f"const float {result} = {value};")
        return result

    def flat_pass(self) -> list[str]:
        body = self.body("row", "column", [])
        index = self.one_of("index_", "k")
        head = [f"const int64_t row = {index} / n;", f"const int64_t column = {index} % n;"]
        return self.loop(index, "rows * n", [*head, *body])

    def columns_pass(self) -> list[str]:
        """Down every column, into a number for each."""
        self.summed = True
        self.arrays.add("sums")
        value = self.expression([self.read(self.at("x", "r", "c"), "x")], 1)
        self.written.add("sums")
        if self.chance(2):
            total = self.fresh("total")
            inner = self.loop("r", "rows", [f"{total} += {value};"])
            return self.loop(
                "c", "n", [f"{self.one_of('float', 'double')} {total} = 0;", *inner, f"sums[c] = {total};"]
            )
        first = self.loop("c", "n", ["sums[c] = 0.0f;"])
        step = self.one_of(f"sums[c] += {value};", f"if ({value} > sums[c]) sums[c] = {value};")
        return [*first, *self.loop("r", "rows", self.loop("c", "n", [step]))]

    def walking_pass(self) -> list[str]:
        output, source = self.one_of("y", "v"), self.one_of("x", "z")
        self.arrays |= {output, source}
        a, b = self.fresh("from"), self.fresh("to")
        value = self.stored(self.expression([self.read(f"*{a}", source)], 1))
        self.written.add(output)
        if self.chance(2):
            head = [f"const {self.element}* {a} = {source};", f"{self.element}* {b} = {output};"]
            return [*head, *self.loop("k", "rows * n", [f"*{b} = {value};", f"++{a};", f"++{b};"])]
        value = self.stored(self.expression([self.read(f"{a}[i]", source)], 1))
        head = [f"const {self.element}* {a} = {source} + r * n;", f"{self.element}* {b} = {output} + r * n;"]
        return self.loop("r", "rows", [*head, *self.loop("i", "n", [f"{b}[i] = {value};"])])

    def running_pass(self) -> list[str]:
        output, total = self.one_of("y", "v"), self.fresh("running")
        self.summed = True
        value = self.expression([self.read(self.at("x", "r", "i"), "x")], 1)
        step = self.one_of(
            f"{total} += {value};", f"{total} = {total} + {value};", f"{total} = fmaxf({total}, {value});"
        )
        self.written.add(output)
        lines = [step, f"{self.at(output, 'r', 'i')} = {self.stored(total)};"]
        lines = lines[::-1] if self.chance(3) else lines
        kind = "float" if "fmaxf" in step else self.one_of("float", "double")
        return self.loop("r", "rows", [f"{kind} {total} = 0;", *self.loop("i", "n", lines)])

    def place_pass(self) -> list[str]:
        """Where the largest element of a row is."""
        self.arrays |= {"x", "out"}
        best, place = self.fresh("best"), self.fresh("place")
        value = self.read(self.at("x", "r_", "i"), "x")
        operator = self.one_of(">", ">=", "<")
        first = "INFINITY" if operator == "<" else "-INFINITY"
        body = [f"if ({value} {operator} {best}) {{", f"  {best} = {value};", f"  {place} = i;", "}"]
        self.written.add("out")
        return self.loop("r_", "rows", [f"float {best} = {first};", f"int64_t {place} = 0;", *self.loop("i", "n", body),
                                        f"out[r_] = {self.one_of(f'(float){place}', f'{best} + (float){place}')};"])  # fmt: skip

    def function_pass(self) -> list[str]:
        """Through a function that is one pass over its arguments."""
        output, name = self.one_of("y", "v"), self.fresh("apply")
        self.arrays |= {"x", output}
        value = self.expression([self.read("from[i]", "x"), self.read("to[i]", output)], 1)
        scalars, self.scalars = self.scalars, []
        loop = "\n".join("  " + line for line in self.loop("i", "n", [f"to[i] = {self.stored(value)};"]))
        self.scalars = scalars
        self.helpers[name] = (
            f"static void {name}(const {self.element}* from, {self.element}* to, int64_t n) {{\n{loop}\n}}\n"
        )
        self.written.add(output)
        if self.chance(2):
            return [f"{name}(x, {output}, rows * n);"]
        return self.loop("r", "rows", [f"{name}(x + r * n, {output} + r * n, n);"])

    def first_pass(self) -> list[str]:
        """Something is done for the first element alone."""
        output = self.one_of("y", "v")
        a = self.read(self.at("x", "r", "i"), "x")
        place = self.at(output, "r", "i")
        last = self.fresh("last")
        self.written.add(output)
        self.arrays.add("out")
        special = self.one_of(f"if (i == 0) {last} = {a};", f"if (i == 0) {{ {last} = {a} * 2.0f; out[r_] = {last}; }}")
        lines = [special, f"{place} = {self.stored(f'{a} + {last}')};"]
        lines = [line.replace("[r *", "[r_ *").replace("+ r *", "+ r_ *") for line in lines]
        if self.chance(3):
            lines = lines[::-1]
        return self.loop("r_", "rows", [f"float {last} = 0.0f;", *self.loop("i", "n", lines)])


PASSES = ("rows", "rows", "rows", "flat", "columns", "walking", "running", "place", "function", "first")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    dtype = draw(st.sampled_from(("float32", "float32", "float16")))
    template = draw(st.booleans())
    element = "T" if template else C_TYPES["cpu"][dtype]
    writer = Writer(draw, dtype, element, draw(st.sampled_from(("int64_t", "size_t"))), draw(st.booleans()))
    for _ in range(draw(st.integers(1, 3))):
        kind = writer.one_of(*PASSES)
        lines = getattr(writer, f"{kind}_pass")()
        writer.lines += lines if kind == "rows" else ["{", *("  " + line for line in lines), "}"]
    if not writer.arrays & OUTPUTS.keys():
        writer.lines += ["{", *("  " + line for line in writer.walking_pass()), "}"]
    even = draw(st.integers(0, 3)) == 3
    spec = spec_of("cpu", dtype, writer.arrays, draw(st.sampled_from(TIMED)), even)
    body = "".join(f"  {line}\n" for line in writer.lines)
    parts = [HEADERS]
    helpers = [
        f"template <typename T>\n{text}" if template and "T*" in text else text for text in writer.helpers.values()
    ]
    if template:
        names = [tensor.name for tensor in spec.tensors]
        held = {t.name: "const " if t.role == "input" else "" for t in spec.tensors}
        kinds = {t.name: "T" if t.dtype == "T" else C_TYPES["cpu"][t.dtype] for t in spec.tensors}
        listed = ", ".join([*(f"{held[name]}{kinds[name]}* {name}" for name in names), "int64_t rows", "int64_t n"])
        parts += [*helpers, f"template <typename T>\nstatic void work({listed}) {{\n{body}}}\n"]
        call = ", ".join([*names, "rows", "n"])
        generic = f"<{C_TYPES['cpu'][dtype]}>" if not any(kinds[name] == "T" for name in names) else ""
        body = f"  work{generic}({call});\n"
    else:
        parts += helpers
    parts.append(entry("cpu", spec, body))
    exact = not (writer.summed or writer.inexact)
    return Program("cpu", "\n".join(parts), spec, even=even, exact=exact)
