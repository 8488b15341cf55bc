"""C++ of the sketch `stream`: a thread's groups of queries one after another, their scores in memory of its own."""

from __future__ import annotations

from compiler.codegen.cpu import STRIP, CpuText
from compiler.codegen.kernels import KernelFunction, signature
from compiler.codegen.stream_lines import StreamLines, express_stores, store_lines, store_of
from compiler.draft.expressions import Expr, by_name
from compiler.draft.index import Index
from compiler.draft.printing import indent, index_text
from compiler.program import KernelProgram
from compiler.streams import StreamKernel


def cpu_stream_function(program: KernelProgram, kernel: StreamKernel, name: str) -> KernelFunction:
    """Groups of queries from `begin` to `end`, one after another: scores, reductions, weights, sums."""
    text = CpuText(program, kernel)
    text.levels = [set(), set()]
    lines = StreamLines(text, kernel)
    assert kernel.scores and kernel.sums and kernel.query and kernel.keyed and kernel.weight and kernel.value
    known = {kernel.scores: "score"} | {
        m.definition.outs[0]: f"folded[{n} * ({index_text(kernel.group)}) + {kernel.member}]"
        for n, m in enumerate(kernel.folds)
    }
    summed = known | {kernel.sums.definition.outs[0]: "sum"}
    leaf = lambda expr: by_name(expr, known)  # noqa: E731
    stores = [store_of(member) for member in kernel.stores]
    values = express_stores(kernel, summed)
    roots = [
        kernel.query,
        kernel.keyed,
        kernel.value,
        leaf(kernel.weight),
        *(leaf(m.value) for m in kernel.folds),
        *values,
    ]
    roots += [kernel.masked] if kernel.masked else []
    counts = [kernel.units, kernel.group, kernel.keys]
    parameters, arguments = signature(text, stores, roots, counts, plain=True, leaves=summed.values())
    group, keys = index_text(kernel.group), index_text(kernel.keys)
    skip = lines.printed(leaf(kernel.masked)) if kernel.masked else ([], "false")
    over_member = (
        f"for (int64_t {kernel.member} = 0; {kernel.member} < {group}; ++{kernel.member}) {{" if kernel.member.is_Symbol else "{"
    )  # fmt: skip
    member_at = str(kernel.member) if kernel.member.is_Symbol else "0"

    def loop(variable: Index, end: str, body: list[str], simd: str = "") -> list[str]:
        return [*([simd] if simd else []), f"for (int64_t {variable} = 0; {variable} < {end}; ++{variable}) {{", *indent(body, 1), "}"]  # fmt: skip

    def printed(expr: Expr, then: str) -> list[str]:
        before, value = lines.printed(expr)
        return [*before, then.replace("{}", value)]

    reduced = []
    for number, fold in enumerate(kernel.folds):
        score = f"const float score = row[{kernel.key}];"
        one = lambda held, fold=fold: printed(leaf(fold.value), f"{held} = join({held}, {{}});")  # noqa: E731
        reduced += [
            "{", f"    float lanes[{STRIP}];", f"    for (auto& one : lanes) {{ one = {text.identity(fold)}; }}",
            f"    const auto join = {text.join(fold)};", f"    const int64_t whole = {keys} / {STRIP} * {STRIP};",
            f"    for (int64_t first = 0; first < whole; first += {STRIP}) {{", "        #pragma omp simd",
            f"        for (int64_t lane = 0; lane < {STRIP}; ++lane) {{",
            *indent([f"const int64_t {kernel.key} = first + lane;", score, *one("lanes[lane]")], 3), "        }", "    }",
            "    float held = join_lanes(lanes, join);",
            f"    for (int64_t {kernel.key} = whole; {kernel.key} < {keys}; ++{kernel.key}) {{", *indent([score, *one("held")], 2), "    }",
            f"    folded[{number} * ({group}) + {member_at}] = held;", "}",
        ]  # fmt: skip
    each, once = store_lines(text, kernel, stores, values)
    dots = [
        f"const float* asked = queries.data() + {member_at} * {kernel.depths};", "float dot = 0.0f;",
        *loop(kernel.depth, str(kernel.depths), [f"dot += asked[{kernel.depth}] * element[{kernel.depth}];"], "#pragma omp simd reduction(+ : dot)"),
        f"scores[{member_at} * {keys} + {kernel.key}] = dot;",
    ]  # fmt: skip
    adding = [
        f"const float weight = scores[{member_at} * {keys} + {kernel.key}];",
        "if (weight != 0.0f || weight != weight) {" if not program.spec.nans else "{",
        f"    float* all = sums.data() + {member_at} * {kernel.columns};",
        *indent(loop(kernel.column, str(kernel.columns), [f"all[{kernel.column}] += weight * element[{kernel.column}];"], "#pragma omp simd"), 1),
        "}",
    ]  # fmt: skip
    some = [
        "bool any = false;", over_member, f"    any |= scores[{member_at} * {keys} + {kernel.key}] != 0.0f;", "}",
        "if (!any) { continue; }",
    ] if kernel.masked is not None and not program.spec.nans else []  # fmt: skip
    unit = kernel.unit if kernel.unit.is_Symbol else "unit"
    body = [
        f"std::vector<float> queries(static_cast<size_t>({group}) * {kernel.depths}), scores(static_cast<size_t>({group}) * ({keys})), sums(static_cast<size_t>({group}) * {kernel.columns});",
        f"std::vector<float> folded(static_cast<size_t>({group}) * {max(1, len(kernel.folds))}), element({max(kernel.depths, kernel.columns)});",
        f"for (int64_t {unit} = {text.local('begin')}; {unit} < {text.local('end')}; ++{unit}) {{",
        *indent([over_member, *indent(loop(kernel.depth, str(kernel.depths), printed(kernel.query, f"queries[{member_at} * {kernel.depths} + {kernel.depth}] = {{}};")), 1), "}",
        *loop(kernel.key, keys, [
            *skip[0], f"if ({skip[1]}) {{", f"    {over_member} scores[{member_at} * {keys} + {kernel.key}] = 0.0f; }}", "    continue;",
            "}",
            *loop(kernel.depth, str(kernel.depths), printed(kernel.keyed, f"element[{kernel.depth}] = {{}};")), over_member,
            *indent(dots, 1), "}",
        ]),
        over_member, f"    float* row = scores.data() + {member_at} * {keys};", *indent(reduced, 1),
        *indent(loop(kernel.key, keys, [f"const float score = row[{kernel.key}];", *printed(leaf(kernel.weight), f"row[{kernel.key}] = {{}};")], "#pragma omp simd"), 1),
        *indent(once, 1), "}",
        "std::fill(sums.begin(), sums.end(), 0.0f);",
        *loop(kernel.key, keys, [*some,
            *loop(kernel.column, str(kernel.columns), printed(kernel.value, f"element[{kernel.column}] = {{}};")), over_member,
            *indent(adding, 1), "}"]),
        over_member,
        *indent(loop(kernel.column, str(kernel.columns), [f"const float sum = sums[{member_at} * {kernel.columns} + {kernel.column}];", *each]), 1),
        "}"], 1),
        "}",
    ]  # fmt: skip
    given = ", ".join([*parameters, *text.units])
    whole = "\n".join([f"void {name}({given}) {{", *indent(body, 1), "}", ""])
    return KernelFunction(name, whole, tuple(parameters), tuple(arguments), (), kernel)
