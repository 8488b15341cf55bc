"""Random C++ programs of one thread: passes over rows in the forms that people write them in.

Each pass goes over the tensors' rows and elements, by two loops, by a flat one, down the columns, with pointers that walk or
through small functions, and may sum up over a row or a column.
Conditions ask for inputs alone and quotients stay away from zero, so that another order of summation changes last digits only.
"""

from __future__ import annotations

from hypothesis import strategies as st

from tests.nodes.rewrites.fuzz.author import Author
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
TIMED = ((1024, 4096), (64, 1000), (8, 131072), (4096, 64))
PASSES = ("rows", "rows", "rows", "flat", "columns", "walking", "running", "place", "function", "first")
TEXTS = {
    # Down every column, into a number for each.
    "columns": ("""
loop c n
  `float|double` @total = 0;
  loop r rows
    @total += @value;
  sums[c] = @total;
""", """
loop c n
  sums[c] = 0.0f;
loop r rows
  loop c n
    `sums[c] += @value;|if (@value > sums[c]) sums[c] = @value;`
"""),
    "walking": ("""
const @E* @from = @source;
@E* @to = @output;
loop k rows * n
  *@to = @walked;
  ++@from;
  ++@to;
""", """
loop r rows
  const @E* @from = @source + r * n;
  @E* @to = @output + r * n;
  loop i n
    @to[i] = @stepped;
"""),
    "running": ("""
loop r rows
  `float|double` @running = 0;
  loop i n
    `@running += @value;|@running = @running + @value;`
    store i @running;
""", """
loop r rows
  `float|double` @running = 0;
  loop i n
    store i @running;
    `@running += @value;|@running = @running + @value;`
""", """
loop r rows
  float @running = 0;
  loop i n
    @running = fmaxf(@running, @value);
    store i @running;
"""),
    # Where the largest element of a row is.
    "place": ("""
loop r rows
  float @best = -INFINITY;
  int64_t @place = 0;
  loop i n
    if (@element `>|>=` @best) {
      @best = @element;
      @place = i;
    }
  out[r] = `(float)@place|@best + (float)@place`;
""", """
loop r rows
  float @best = INFINITY;
  int64_t @place = 0;
  loop i n
    if (@element < @best) {
      @best = @element;
      @place = i;
    }
  out[r] = @best + (float)@place;
"""),
    # Something is done for the first element alone.
    "first": ("""
loop r rows
  float @last = 0.0f;
  loop i n
    `if (i == 0) @last = @element;|if (i == 0) { @last = @element * 2.0f; out[r] = @last; }`
    store i @element + @last;
""", """
loop r rows
  float @last = 0.0f;
  loop i n
    store i @element + @last;
    `if (i == 0) @last = @element;|if (i == 0) { @last = @element * 2.0f; out[r] = @last; }`
"""),
    # Through a function that is one pass over its arguments.
    "function": ("@apply(x, @output, rows * n);", "loop r rows\n  @apply(x + r * n, @output + r * n, n);"),
}  # fmt: skip


class Writer(Author):
    operations = (
        "@a", "(@a * @b)", "(@a + @b)", "(@a - @b)", "`fmaxf|std::max<float>|fminf|MAX`(@a, @b)",
        "~(@a / (1.0f + `fabsf|std::fabs`(@b)))", "~`expf|std::exp`(-fabsf(@a))", "~act(@a)", "(@e `>|<=|!=` 0.0f ? @a : @b)",
        "~`tanhf|std::tanh`(@a)", "~(1.0f / `sqrtf|std::sqrt`(@a * @a + 1.0f))", "(@a * (float)(n % 7))",
    )  # fmt: skip
    needs = {"act": ACTS, "MAX": ("#define MAX(a, b) ((a) > (b) ? (a) : (b))\n",)}  # noqa: RUF012

    def __init__(self, draw: st.DrawFn, dtype: str, element: str, index_type: str, pointers: bool) -> None:
        super().__init__(draw)
        self.dtype, self.element, self.index_type = dtype, element, index_type
        self.pointers = pointers
        """Rows are named by pointers."""
        self.row = "r"

    def read(self, place: str, array: str) -> str:
        if self.dtype == "float32" or array in ("s", "out", "sums"):
            return place
        return self.said(f"`static_cast<float>|(float)|float`({place})")

    def stored(self, value: str) -> str:
        value = value.removesuffix(";")
        return f"{value if self.element == 'float' else f'static_cast<{self.element}>({value})'};"

    def at(self, array: str, index: str) -> str:
        self.arrays.add(array)
        if array in ("w", "sums"):
            return f"{array}[{index}]"
        if array in ("s", "out"):
            return f"{array}[{self.row}]"
        first = f"{self.row} * {'2 * ' if array == 'pair' else ''}n"
        return f"({array} + {first})[{index}]" if self.pointers and self.chance(4) else f"{array}[{first} + {index}]"

    def element_of(self, index: str) -> str:
        """An operand of one element."""
        choice = self.one_of("x", "z", "w", "y", "v", "s", "pair", "table", "next")
        if choice == "table":
            self.arrays |= {"table", "index"}
            return self.read(f"table[index[{self.row}] * n + {index}]", "table")
        if choice == "pair":
            return self.read(
                self.at("pair", self.one_of(index, f"n + {index}", f"2 * {index}", f"2 * {index} + 1")), "pair"
            )
        if choice == "next":
            choice, index = "z", self.one_of(f"n - 1 - {index}", f"({index} + 1) % n", f"{index} / 2", "0")
        return self.read(self.at(choice, index), choice)

    def body(self, index: str, sums: list[tuple[str, str]]) -> list[str]:
        lines, names = list[str](), list[str]()
        for _ in range(self.draw(st.integers(1, 3))):
            value = self.element_of(index)
            changed = any((o in self.written and f"{o}[" in value) or f"({o} +" in value for o in OUTPUTS)
            names.append(self.fresh("old" if changed else "in"))
            if not changed:
                self.exact.add(names[-1])
            lines.append(self.said(f"`const float|float` {names[-1]} = {value};"))
        exact = self.exact_among(names)
        if exact and self.chance(8):
            lines.append(f"if ({self.one_of(*exact)} < -1.5f) continue;")
        if self.chance():
            name = self.fresh("t")
            lines.append(f"float {name} = {self.expression(names)};")
            if exact and self.chance(3):
                lines.append(f"if ({self.one_of(*exact)} > 0.25f) {name} = {self.expression([*names, name], 1)};")
            names.append(name)
        for name, operator in sums:
            step = {"+": "@n += @v;", "max": "@n = fmaxf(@n, @v);", "min": "@n = std::min<float>(@n, @v);"}[operator]
            lines.append(self.said(step, {"n": name, "v": self.expression(names, 1)}))
        if not sums or self.chance():
            output = self.one_of("y", "v")
            place, value = self.at(output, index), self.expression(names)
            store = f"{place} = {self.stored(value)}"
            if self.element == "float" and self.chance(4):
                store = self.said(f"{place} `+=|*=|-=` {value};")
            if exact and self.chance(5):
                store = f"if ({self.one_of(*exact)} > 0.0f) {{ {store} }}"
            lines.append(store)
            self.written.add(output)
        return lines

    def loop(self, index: str, bound: str, body: list[str]) -> list[str]:
        kind, inner = self.one_of(self.index_type, "int"), ["  " + line for line in body]
        if self.chance(6) and not any("continue;" in line for line in body):
            turned = [f"{kind} {index} = 0;", f"while ({index} < {bound}) {{", *inner, f"  ++{index};", "}"]
            return ["{", *("  " + line for line in turned), "}"]
        return [self.said(f"for ({kind} {index} = 0; {index} < {bound}; `++{index}|{index}++`) {{"), *inner, "}"]

    def rows_pass(self) -> list[str]:
        """Rows, and within each one or more loops over its elements."""
        self.scalars, inner = [], list[str]()
        self.row = self.one_of("r", self.fresh("row"))
        for _ in range(self.draw(st.integers(1, 3))):
            sums = [(self.fresh("sum"), self.one_of("+", "max", "min")) for _ in range(self.draw(st.integers(0, 2)))]
            for name, operator in sums:
                kind = "double" if operator == "+" and self.chance(4) else "float"
                inner.append(f"{kind} {name} = {NEUTRAL[operator]};")
            inner += self.loop("i", "n", self.body("i", sums))
            for name, _ in sums:
                self.summed = True
                result = self.one_of(
                    f"(float){name}", f"{name} / n", f"1.0f / std::sqrt((float)({name} * {name} / n) + 1.0f)"
                )
                if not result.startswith("(float)"):
                    self.inexact = True
                    inner.append(self.said(f"const float @result = {result};", words := dict[str, str]()))
                    result = words["result"]
                self.scalars.append(result)
        if self.scalars and self.chance():
            inner.append(f"{self.at('out', '')} = {self.expression([], 1)};")
            self.written.add("out")
        self.scalars = []
        return self.loop(self.row, "rows", inner)

    def flat_pass(self) -> list[str]:
        self.row = "row"
        index = self.one_of("index_", "k")
        head = [f"const int64_t row = {index} / n;", f"const int64_t column = {index} % n;"]
        return self.loop(index, "rows * n", [*head, *self.body("column", [])])

    def text_pass(self, kind: str) -> list[str]:
        self.row = "r"
        output, source = self.one_of("y", "v"), self.one_of("x", "z")
        words = {"output": output, "source": source, "E": self.element}
        element = self.read(self.at("x", "c" if kind == "columns" else "i"), "x")
        text = self.one_of(*TEXTS[kind])
        if kind == "walking":
            words |= {"from": self.fresh("from"), "to": self.fresh("to")}
            place = f"*{words['from']}" if "@walked" in text else f"{words['from']}[i]"
            words["walked"] = words["stepped"] = self.stored(
                self.expression([self.read(place, source)], 1)
            ).removesuffix(";")
        elif kind == "function":
            words["apply"] = self._function(output)
        words["element"] = element
        if "@value" in text:
            words["value"] = self.expression([element], 1)
        self.summed |= kind in ("columns", "running")
        written = {"columns": {"sums"}, "place": {"out"}, "first": {output, "out"}}.get(kind, {output})
        self.arrays |= written | ({source} if kind == "walking" else {"x"})
        lines = self.run(text, words)
        self.written |= written
        return lines

    def _function(self, output: str) -> str:
        value = self.expression([self.read("from[i]", "x"), self.read("to[i]", output)], 1)
        name, loop = self.fresh("apply"), self.loop("i", "n", [f"to[i] = {self.stored(value)}"])
        head = f"static void {name}(const {self.element}* from, {self.element}* to, int64_t n) {{\n"
        self.helpers[name] = head + "".join(f"  {line}\n" for line in loop) + "}\n"
        return name


@st.composite
def programs(draw: st.DrawFn) -> Program:
    dtype = draw(st.sampled_from(("float32", "float32", "float16")))
    template = draw(st.booleans())
    element = "T" if template else C_TYPES["cpu"][dtype]
    writer = Writer(draw, dtype, element, draw(st.sampled_from(("int64_t", "size_t"))), draw(st.booleans()))
    lines = list[str]()
    for _ in range(draw(st.integers(1, 3))):
        kind = writer.one_of(*PASSES)
        made = writer.text_pass(kind) if kind in TEXTS else getattr(writer, f"{kind}_pass")()
        lines += made if kind == "rows" else ["{", *("  " + line for line in made), "}"]
    if not writer.arrays & OUTPUTS.keys():
        lines += ["{", *("  " + line for line in writer.text_pass("walking")), "}"]
    even = draw(st.integers(0, 3)) == 3
    spec = spec_of("cpu", dtype, writer.arrays, draw(st.sampled_from(TIMED)), even)
    body = "".join(f"  {line}\n" for line in lines)
    parts = [
        f"template <typename T>\n{text}" if template and "T*" in text else text for text in writer.helpers.values()
    ]
    if template:
        kinds = {t.name: "T" if t.dtype == "T" else C_TYPES["cpu"][t.dtype] for t in spec.tensors}
        held = [f"{'const ' if t.role == 'input' else ''}{kinds[t.name]}* {t.name}" for t in spec.tensors]
        parts.append(
            f"template <typename T>\nstatic void work({', '.join([*held, 'int64_t rows', 'int64_t n'])}) {{\n{body}}}\n"
        )
        generic = "" if "T" in kinds.values() else f"<{C_TYPES['cpu'][dtype]}>"
        body = f"  work{generic}({', '.join([*kinds, 'rows', 'n'])});\n"
    exact = not (writer.summed or writer.inexact)
    return Program("cpu", "\n".join([HEADERS, *parts, entry("cpu", spec, body)]), spec, even=even, exact=exact)
