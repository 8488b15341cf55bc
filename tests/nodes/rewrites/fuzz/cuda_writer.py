"""Writes one random CUDA kernel: elements, expressions, passes over a row and the reductions between them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.nodes.rewrites.fuzz.author import Author, folded
from tests.nodes.rewrites.fuzz.trial import INPUTS, OUTPUTS

HEADERS = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n#include <stdint.h>\n"
LONGEST = 1030
"""Elements of a row, in arrays that hold it."""
NEUTRAL = {"+": "0.0f", "fmaxf": "-INFINITY", "fminf": "INFINITY"}
FOR_EACH = """\
template <typename I, typename F>
__device__ inline void for_each(I first, const int64_t last, const I step, F visit) {
  for (I at = first; at < last; at += step) visit(at);
}
"""
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
SHUFFLED = "for (int offset = 16; offset > 0; offset `>>= 1|/= 2`) @fold"
# Several passes that belong together: a softmax in two orders, a norm in two passes, or running.
SOFTMAX = """
float @top = -INFINITY;
loop i n
  `@top = fmaxf(@top, @x);|if (@x > @top) @top = @x;`
join fmaxf top
float @total = 0.0f;
loop i n
  const float e = `expf|__expf`(@x - @top);
  @total += e;
join + total
loop i n
  store i expf(@x - @top) / @total;
"""
KNOWN = {
    "softmax": SOFTMAX,
    "stored softmax": SOFTMAX.replace("  @total += e;\n", "  @total += e;\n  store i e;\n").replace(
        "expf(@x - @top) / @total;", "`@again / @total|@again * (1.0f / @total)`;"),
    "online softmax": """
float @top = -INFINITY;
float @total = 0.0f;
loop i n
  const float e = @x;
  const float higher = fmaxf(@top, e);
  @total = @total * expf(@top - higher) + expf(e - higher);
  @top = higher;
float @whole = @top;
join fmaxf whole
@total = @top == -INFINITY ? 0.0f : @total * expf(@top - @whole);
join + total
loop i n
  store i expf(@x - @whole) / @total;
""",
    "norm": """
float @sum = 0.0f, @square = 0.0f;
loop i n
  @sum += @x;
join + sum
const float @mean = @sum / n;
loop i n
  const float e = @x - @mean;
  @square += e * e;
join + square
loop i n
  store i (@x - @mean) * rsqrtf(@square / n + 1.0f) * @w;
""",
    "moments": """
float @sum = 0.0f, @square = 0.0f;
loop i n
  const float e = @x;
  @sum += e;
  @square += e * e;
join + sum
join + square
loop i n
  store i (@x - @sum / n) * rsqrtf(@square / n + 1.0f);
""",
    # Its row is in an array of each thread, with minus infinity behind it or with nothing.
    "kept softmax": """
float @kept[@items];
float @top = -INFINITY, @total = 0.0f;
round bare
  @kept[k] = i < n ? @x : -INFINITY;
  @top = fmaxf(@top, @kept[k]);
join fmaxf top
round none
  @kept[k] = expf(@kept[k] - @top);
  @total += @kept[k];
join + total
round asked
  store i @kept[k] / @total;
""",
}  # fmt: skip
KNOWN["kept softmax, asked"] = (
    KNOWN["kept softmax"].replace("bare", "asked").replace("none", "asked").replace("i < n ? @x : -INFINITY", "@x")
)
TREES = ("""
@slots[threadIdx.x] = @name;
__syncthreads();
for (int s = @half; s > 0; `s >>= 1|s /= 2`) {
  if (threadIdx.x < s) @tree
  __syncthreads();
}
""", """
@slots[threadIdx.x] = @name;
for (int s = @half; s > 0; `s >>= 1|s /= 2`) {
  __syncthreads();
  if (threadIdx.x < s) @tree
}
__syncthreads();
""")  # fmt: skip
# Shuffles, one slot a warp, and then every thread, every warp or the first one.
BY_WARPS = """
__shared__ float @slots[32];
@shuffle
if (threadIdx.x % 32 == 0) @slots[threadIdx.x / 32] = @name;
__syncthreads();
"""
OVER_SLOTS = {
    "every thread": "float @total = @slots[0];\nfor (int w = 1; w < `blockDim.x / 32|@warps`; ++w) @slotted",
    "every warp": "@name = threadIdx.x % 32 < `blockDim.x / 32|@warps` ? @slots[threadIdx.x % 32] : @neutral;\n@whole",
    "first warp": """
@name = threadIdx.x % 32 < `blockDim.x / 32|@warps` ? @slots[threadIdx.x % 32] : @neutral;
if (threadIdx.x < 32) {
  @shuffle
  if (threadIdx.x == 0) @slots[0] = @name;
}
__syncthreads();
const float @total = @slots[0];
""",
}
BLOCK_FUNCTION = """
__device__ float @function(float value) {
  __shared__ float slots[32];
  for (int offset = 16; offset > 0; offset /= 2) @fold
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  @last
  return value;
}
"""
VECTORS = """
__syncthreads();
for (int i = threadIdx.x; i < n / @count; i += @stride) {
  @kind pack = reinterpret_cast<@const@kind*>(&@from)[i];
  @parts
  reinterpret_cast<@kind*>(&@to)[i] = pack;
}
__syncthreads();
"""


@dataclass
class Form:
    """How one kernel's author writes: drawn once for a kernel, as people are consistent."""

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


class Writer(Author):
    """One kernel's text as it grows."""

    operations = (
        "@a", "(@a * @b)", "(@a + @b)", "(@a - @b)", "`fmaxf(@a, @b)|fminf(@a, @b)|max((float)(@a), (float)(@b))`",
        "~(@a / (1.0f + fabsf(@b)))", "~`expf|__expf|exp`(-fabsf(@a))", "~act(@a)", "(@e `>|<|>=|!=` 0.0f ? @a : @b)", "~tanhf(@a)",
        "(@a * (float)(n % 7))", "~`rsqrtf(@a * @a + 1.0f)|(1.0f / sqrtf(@a * @a + 1.0f))|(float)sqrt(fabs(@a * 1.0))`",
        "~(@a * `0.5|2.0|1e-1`)",  # what is around it is computed in double, too, and fast_math makes floats of that
    )  # fmt: skip
    needs = {"act": ACTS}  # noqa: RUF012

    def __init__(self, draw: st.DrawFn, form: Form, name: str, written: set[str]) -> None:
        super().__init__(draw)
        self.form, self.name, self.written = form, name, set(written)
        self.lines: list[str] = []
        self.dynamic = self.chance(3)
        """Trees are in one array of dynamic shared memory."""
        self.used_buffer = False
        choices = ("x", "z", "y", "v", "s", "pair", "gathered", "next", "any")
        self.favourites = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=3, unique=True))
        """What passes read, mostly the same, so that several read one element."""
        self.outputs = (self.one_of("v", "y"),) if self.chance(3) else ("y", "v")
        """Arrays that this kernel may write; it reads any element of the others."""

    @property
    def packed(self) -> bool:
        """Whether the kernel takes a struct; not where a loop of its own is called like one of the arrays."""
        return self.form.packed and not any("int s = " in line or "int w = " in line for line in self.lines)

    # Elements.

    def at(self, array: str, index: str) -> str:
        """An element of a row, as this kernel's author addresses it."""
        self.arrays.add(array)
        factor = "2 * " if array == "pair" else ""
        if array in ("w", "s", "out", "index"):
            return f"{array}[{index}]"
        if self.form.team == "flat":
            return f"{array}[i]" if index == "column" and not factor else f"{array}[row * {factor}n + {index}]"
        return {
            "pointers": f"{array}_row[{index}]",
            "moved": f"{array}[{index}]",
            "base": f"{array}[{factor}base + {index}]",
            "wide": f"{array}[(int64_t)row * {factor}n + {index}]",
        }.get(self.form.addressing, f"{array}[row * {factor}n + {index}]")

    def loaded(self, array: str, index: str) -> str:
        place = self.at(array, index)
        if array in ("s", "out"):
            return place
        if array in INPUTS and self.form.load == "ldg":
            place = f"__ldg(&{place})"
        if self.form.load in ("function", "reference"):
            self.helpers["to_float"] = TO_FLOAT
            return f"to_float({place})"
        if self.form.dtype == "float32":
            return place
        return f"(float){place}" if self.form.load == "cast" else f"static_cast<float>({place})"

    def stored(self, value: str) -> str:
        element, value = self.form.element, value.removesuffix(";")
        if element == "float":
            return f"{value};"
        return f"({element})({value});" if self.form.load == "cast" else f"static_cast<{element}>({value});"

    def exact_expression(self, names: list[str]) -> str:
        return self.said(
            "`@a * 2.0f|@a - @b|fmaxf(@a, @b)|(@a > 0.0f ? @b : 0.0f)|-@a`",
            {w: self.one_of(*self.exact_among(names)) for w in "ab"},
        )

    # Passes over the row.

    def loop(self, index: str, bound: str, body: list[str]) -> list[str]:
        """`body` for every element that the thread has."""
        form, kind = self.form, "for"
        leaves = any("continue;" in line for line in body)
        if form.team != "thread" and not form.macro:
            kind = self.one_of("for", "for", "for", "while", *(() if leaves else ("each",)))
            kind = "for" if kind == "while" and not index[-1].isdigit() else kind
        start, stride = form.thread, form.stride
        head = (
            [self.one_of("#pragma unroll", "#pragma unroll 4")]
            if form.team != "thread" and kind == "for" and self.chance()
            else []
        )
        if kind == "while":
            turn = f"{index} += {stride};"
            body = [*(line.replace("continue;", f"{{ {turn} continue; }}") for line in body), turn]
            head = [f"{form.index_type} {index} = {start};", f"while ({index} < n) {{"]
        elif kind == "each":
            self.helpers["for_each"] = FOR_EACH
            head = [f"for_each<{form.index_type}>({start}, n, {stride}, [&](const {form.index_type} {index}) {{"]
        elif form.macro and form.team != "thread":
            self.helpers["LOOP"] = f"#define LOOP(i, n) for ({form.index_type} i = {start}; i < (n); i += {stride})\n"
            head.append(f"LOOP({index}, n) {{")
        else:
            step = f"{index} += {stride}" if form.team != "thread" else f"++{index}"
            head.append(f"for ({form.index_type} {index} = {start}; {index} < n; {step}) {{")
        return [*head, *("  " + line for line in body), "});" if kind == "each" else "}"]

    def round(self, asks: str, _: str, body: list[str]) -> list[str]:
        """`body` for every element that the thread holds in an array; whether it is one is asked, or the body asks, or nobody."""
        place = (
            [f"const {self.form.index_type} i = {self.form.thread} + k * {self.form.stride};"] if asks != "none" else []
        )
        within = ["if (i < n) {", *("  " + line for line in body), "}"] if asks == "asked" else body
        return [f"for (int k = 0; k < {self._items()}; ++k) {{", *("  " + line for line in [*place, *within]), "}"]

    def _items(self) -> int:
        return LONGEST // (32 if self.form.team == "warp" else self.form.width) + 1

    def loads(self, index: str, body: list[str]) -> list[str]:
        """Declares variables with elements, and returns their names: `in...` where no reduction has touched them."""
        names: list[str] = []
        others = [a for a in ("z", "x", "y", "v") if a not in self.outputs]
        for choice in self.draw(st.lists(st.sampled_from(self.favourites), min_size=1, max_size=3, unique=True)):
            choice = self.one_of("x", "z", "w", "s", "pair", "gathered", "next", "index") if choice == "any" else choice
            name = self.fresh("in")
            if choice == "gathered":
                self.arrays |= {"index", "table"}
                place = f"table[index[row] * n + {index}]"
                value = place if self.form.dtype == "float32" else f"static_cast<float>({place})"
            elif choice == "index":
                value = f"(float)({index} % 5)"
            elif choice == "next":
                choice = self.one_of(*others)
                value = self.loaded(choice, self.one_of(f"n - 1 - {index}", f"({index} + 1) % n", f"{index} / 2", "0"))
            elif choice == "pair":
                value = self.loaded("pair", self.one_of(index, f"n + {index}", f"2 * {index}", f"2 * {index} + 1"))
            else:
                value = self.loaded(choice, "row" if choice == "s" else index)
            inline = self.chance() and choice != "index"  # read where it is used
            names.append(value if inline else name)
            if choice not in self.written and not (inline and choice in OUTPUTS):
                self.exact.add(names[-1])
            if inline:
                continue
            if choice in ("x", "z", "y") and self.form.load == "reference":
                self.helpers["fetch"] = FETCH
                body += [f"float {name};", f"fetch({self.pointer(choice)}, {self.place(choice, index)}, {name});"]
                continue
            kind = self.one_of("const float", "float", *(("const auto",) if choice in ("x", "y") else ()))
            kind = (
                "const float"
                if kind == "const auto" and "float" not in value and self.form.dtype != "float32"
                else kind
            )
            body.append(f"{kind} {name} = {value};")
        return names

    def place(self, array: str, index: str) -> str:
        """Where in `pointer(array)` an element is."""
        return self.at(array, index).partition("[")[2].removesuffix("]")

    def pointer(self, array: str) -> str:
        return self.at(array, "0").partition("[")[0]

    def body(self, index: str, sums: list[tuple[str, str]]) -> list[str]:
        """What happens to one element; folds into each of `sums`, names with operators."""
        body = list[str]()
        variables = self.loads(index, body)
        exact = self.exact_among(variables)
        if exact and self.chance(8):
            body.append(f"if ({self.one_of(*exact)} < -1.5f) continue;")
        for _ in range(self.draw(st.integers(0, 2))):
            name, plain = self.fresh("t"), bool(exact) and self.chance()
            value = self.exact_expression(variables) if plain else self.expression(variables)
            body.append(self.said(f"`const float|float` {name} = {value};"))
            if plain:
                self.exact.add(name)
            if body[-1].startswith("float") and exact and self.chance():
                other = self.exact_expression(variables) if plain else self.expression([*variables, name], 1)
                body.append(f"if ({self.one_of(*exact)} > 0.25f) {name} = {other};")
            variables.append(name)
            exact = self.exact_among(variables)
        if self.form.flag and self.chance():
            name, value = self.fresh("t"), self.expression(variables, 1)
            other = self.expression([*variables, name], 1)
            body += [f"float {name} = {value};", self.said(f"`if|if constexpr` (kFlag) {name} = {other};")]
            variables.append(name)
        if exact and self.chance(4):
            body += self._asked(index, self.one_of(*exact), variables)
        for name, operator in sums:
            value = self.expression(variables, 1)
            body.append(
                f"{name} = {name} + {value};" if operator == "+" and self.chance() else folded(operator, name, value)
            )
        stores = [o for o in self.outputs if self.chance()]
        for output in stores or ([] if sums else [self.one_of(*self.outputs)]):
            store = self._store(output, index, self.expression(variables))
            if exact and self.chance(5):
                store = f"if ({self.one_of(*exact)} > 0.0f) {store}"
            elif self.chance(7):
                store = f"{{ {store} }}"
            body.append(store)
            stores = [*stores, output]
        self.written |= set(stores)
        return body

    def _asked(self, index: str, condition: str, variables: list[str]) -> list[str]:
        """Something that only some elements do: read another array, or change a variable that was loaded."""
        changed = [v for v in variables if v.isidentifier()]
        if self.chance() and changed:
            name = f"changed_{self.one_of(*changed)}"
            return [f"float {name} = {name.removeprefix('changed_')};", f"if ({condition} > 0.5f) {name} = {self.expression(variables, 1)};",
                    f"if ({name} > 100.0f) {name} = 100.0f;"]  # fmt: skip
        name = self.fresh("t")
        more = self.loaded(self.one_of("z", "x", "w", *self.outputs), index)
        variables.append(name)
        return [f"float {name} = 0.0f;", self.said(f"if ({condition} `>|<` 0.0f) {{"),
                f"  const float more_{name} = {more};", f"  {name} = {self.expression([*variables, f'more_{name}'], 1)};", "}"]  # fmt: skip

    def _store(self, output: str, index: str, value: str) -> str:
        place = self.at(output, index)
        if self.form.element == "float" and self.chance(4):
            return self.said(f"{place} `+=|*=|-=` {value};")
        if self.form.load == "reference":
            self.helpers["put"] = PUT
            return f"put({self.pointer(output)}, {self.place(output, index)}, {value});"
        return f"__stcs(&{place}, {self.stored(value)[:-1]});" if self.chance(6) else f"{place} = {self.stored(value)}"

    def run_pass(self) -> None:
        sums = [(self.fresh("sum"), self.one_of("+", "fmaxf", "fminf")) for _ in range(self.draw(st.integers(0, 2)))]
        self.lines += [f"float {name} = {NEUTRAL[operator]};" for name, operator in sums]
        index = self.one_of("i", "c", self.fresh("col"))
        self.lines += self.loop(index, "n", self.body(index, sums))
        for name, operator in sums:
            lines, result = self.joined(name, operator)
            self.lines += lines
            made = self.one_of(
                "", f"{result} / n", f"rsqrtf({result} * {result} / n + 1.0f)", f"{result} * 0.5f + 1.0f"
            )
            if made:
                self.inexact = True
                lines, result = self._told(made)
                self.lines += lines
            self.scalars.append(result)
        if self.form.team == "block" and self.chance(4):
            self.lines.append("__syncthreads();")

    def known_pass(self) -> None:
        kinds = [kind for kind in KNOWN if "kept" not in kind or self.form.team in ("block", "warp")]
        kind, output = self.one_of(*kinds), self.one_of(*self.outputs)
        words = {"output": output, "x": self.loaded(self.one_of("x", "z"), "i"), "items": str(self._items())}
        if "stored" in kind:
            words["again"] = self.loaded(output, "i")
        if kind == "norm":
            words["w"] = self.loaded("w", "i")
        self.lines += self.run(KNOWN[kind], words)
        self.inexact = True
        self.written.add(output)

    def vector_pass(self) -> None:
        """The row goes by in vectors, another distribution of elements over threads."""
        if self.form.dtype == "bfloat16":
            return self.run_pass()
        kind, parts = ("float4", "xyzw") if self.form.dtype == "float32" else ("__half2", "xy")
        output, row = self.one_of(*self.outputs), self.one_of("x", "z", *self.outputs)
        value, whole = self.expression(["(float)pack.x"], 1), kind == "float4"
        values = [(part, value.replace("pack.x", f"pack.{part}")) for part in parts]
        words = {"kind": kind, "count": str(len(parts)), "stride": self.form.stride, "const": "const " if row in INPUTS else " ",
                 "from": self.at(row, "0"), "to": self.at(output, "0"),
                 "parts": " ".join(f"pack.{part} = {v if whole else f'__float2half({v})'};" for part, v in values)}  # fmt: skip
        self.lines += self.run(VECTORS, words)
        return self.written.add(output)

    def line_buffer(self) -> None:
        """The row goes into shared memory, and is read there by the same thread or by another."""
        name, output = self.fresh("line"), self.one_of(*self.outputs)
        value = self.expression([self.loaded("x", "i")], 1)
        other = self.one_of("i", "n - 1 - i", "(i + 1) % n")
        self.lines += [
            f"__shared__ float {name}[1100];",
            *self.loop("i", "n", [f"{name}[i] = {value};"]),
            "__syncthreads();",
        ]
        self.lines += self.loop(
            "i", "n", [self._store(output, "i", self.expression([f"{name}[{other}]", f"{name}[i]"], 1))]
        )
        self.written.add(output)

    # Reductions.

    def joined(self, name: str, operator: str) -> tuple[list[str], str]:
        """What joins what the row's threads hold in `name`, and the name of the result."""
        self.summed = True
        if self.form.team not in ("block", "warp"):
            return [], name
        words = {"name": name, "neutral": NEUTRAL[operator], "warps": str(self.form.width // 32)}
        shuffles = {
            way: folded(operator, name, f"__shfl_{way}_sync(0xffffffff, {name}, offset)") for way in ("xor", "down")
        }
        if self.form.team == "warp":
            way = self.one_of("xor", "down")
            told = [f"{name} = __shfl_sync(0xffffffff, {name}, 0);"] if way == "down" else []
            return [*self.run(SHUFFLED, {"fold": shuffles[way]}), *told], name
        return getattr(self, f"_{self.form.reduction}")(name, operator, words, shuffles)

    def _told(self, value: str) -> tuple[list[str], str]:
        """The name of a value that every thread knows, or that the first one tells the others."""
        name = self.fresh("result")
        if self.form.team != "block" or not self.chance(3):
            return [f"const float {name} = {value};"], name
        stored = self.one_of(f"{name} = {value};", f"{{ {name} = {value}; }}")
        return [f"__shared__ float {name};", f"if (threadIdx.x == 0) {stored}", "__syncthreads();"], name

    def _tree(self, name: str, operator: str, words: dict[str, str], _: dict[str, str]) -> tuple[list[str], str]:
        slots = "buffer" if self.dynamic else self.fresh("partial")
        lines = ["__syncthreads();"] if self.used_buffer else []
        if not self.dynamic:
            lines = [f"__shared__ float {slots}[{self.form.width}];"]
        self.used_buffer = True
        tree = folded(operator, f"{slots}[threadIdx.x]", f"{slots}[threadIdx.x + s]")
        words |= {"slots": slots, "tree": tree, "half": self.one_of("blockDim.x / 2", str(self.form.width // 2))}
        lines += self.run(self.one_of(*TREES), words)
        kind = self.one_of("named", "told", *(() if self.dynamic else ("read",)))
        if kind == "told":
            told, result = self._told(f"{slots}[0]")
            return lines + told, result
        result = f"{slots}[0]" if kind == "read" else self.fresh("total")
        return [*lines, *([] if kind == "read" else [f"const float {result} = {slots}[0];"])], result

    def _warps(
        self, name: str, operator: str, words: dict[str, str], shuffles: dict[str, str]
    ) -> tuple[list[str], str]:
        def shuffled(*ways: str) -> str:
            return self.said(SHUFFLED, {"fold": shuffles[self.one_of(*ways)]})

        kind = self.one_of(*OVER_SLOTS)
        words |= {
            "slots": self.fresh("slots"),
            "total": self.fresh("total"),
            "shuffle": shuffled("xor", "down"),
            "whole": shuffled("xor"),
        }
        words["slotted"] = folded(operator, words["total"], f"{words['slots']}[w]")
        return self.run(BY_WARPS + OVER_SLOTS[kind].lstrip("\n"), words), name if kind == "every warp" else words[
            "total"
        ]

    def _function(self, name: str, operator: str, words: dict[str, str], _: dict[str, str]) -> tuple[list[str], str]:
        function = {"+": "block_sum", "fmaxf": "block_top", "fminf": "block_low"}[operator]
        other = folded(operator, "value", "__shfl_xor_sync(0xffffffff, value, offset)")
        again = folded(operator, "value", "slots[warp]")
        last = self.one_of(
            f"value = slots[0];\n  for (int warp = 1; warp < blockDim.x / 32; ++warp) {again}",
            f"value = threadIdx.x % 32 < blockDim.x / 32 ? slots[threadIdx.x % 32] : {NEUTRAL[operator]};\n"
            f"  for (int offset = 16; offset > 0; offset /= 2) {other}",
        )
        text = self.run(BLOCK_FUNCTION, {"function": function, "fold": other, "last": last})
        self.helpers.setdefault(function, "\n".join(text) + "\n")
        if self.chance():
            return [f"{name} = {function}({name});"], name
        result = self.fresh("total")
        return [f"const float {result} = {function}({name});"], result

    # The whole kernel.

    def write_results(self) -> None:
        """What was reduced goes to memory, one number a row."""
        if self.scalars and self.chance():
            self.arrays.add("out")
            first = "" if self.form.team == "thread" else f"if ({self.form.thread} == 0) "
            self.lines.append(f"{first}out[row] = {self.expression([], 1)};")
