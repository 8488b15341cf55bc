"""Products of 16-bit operands, by cuda/halved_tiles.cuh."""

from __future__ import annotations

import sympy
import torch

from compiler.codegen.kernels import KernelFunction, in_axes
from compiler.codegen.product_parts import BROUGHT, OperandSide, SideLines, by_plan, factor_lines, plan_lines
from compiler.codegen.shifted_sides import bring_by_words, line_lengths
from compiler.codegen.text import Text
from compiler.draft.expressions import Expr
from compiler.draft.lower_convolutions import ImageWindow
from compiler.draft.printing import indent
from compiler.products import ProductKernel
from compiler.program import KernelProgram

HALVED = {1: ((64, 32, 1), (64, 64, 8), (128, 64, 8), (128, 128, 8), (128, 256, 1)), 2: ((128, 128, 8),)}
"""Of one product and of two at once: rows and columns of a tile, and blocks that share a depth at most."""


def stage_lines(
    kernel: ProductKernel, sides, type: str, kind: torch.dtype, wide: str, sizes: str
) -> tuple[list[str], list[str], list[str]]:
    """Lambdas, the call, and the parameters for boxes."""
    lefts, rights = sides_apart(kernel)
    lines, fetched, brought, asked, maps, bytes = [], [], [], [], [], ["0"]
    structs, members, fetches, to, copies = [], [], [], "to", False
    for word, count, first, which in (("left", len(lefts), "first_row", 0), ("right", len(rights), "first_column", 1)):
        places = ("Rows", "Columns")[which]
        size = f"{places} * kTileSteps * 2"
        for at in range(count):
            side, name = sides[at][which], f"{word}Of{at}"
            box, window = side.box(kind), side.window(kind)
            made = bring_side(side, name, type, places, kind)
            copies |= box is None and window is None and not made.member
            lines += made.bring
            bring = f"{name}({'read, ' if made.member else ''}batch, {first}, start, {to}, thread, threads);"
            if made.member:
                structs += made.structs
                members.append(made.member)
                fetches += made.fetch
                fetched.append(f"{name}Fetch(read, batch, {first}, start, thread, threads);")
            if box is None and window is None:
                brought.append(bring)
            else:
                maps.append(f"{word}Map{at}")
                bytes.append(size)
                brought.append(f"if constexpr (!kAsks) {bring}")
            if window is not None:
                asked += side.ask_for_window(window, maps[-1], to, first)
            elif box is not None:
                batch = "batch" if box[2] != 0 else "0"
                along = str(side.along).lower()
                asked.append(f"ask_for_side<{along}, {places}>({word}Map{at}, {to}, barrier, {first}, start, {batch});")
            to = f"{to} + {size}"
    given = ", ".join(f"[[maybe_unused]] {wide} {name}" for name in ("batch", "first_row", "first_column", "start"))
    threads = "[[maybe_unused]] int thread, [[maybe_unused]] int threads"
    lines = [
        "constexpr bool kAsks = Mapped && kAsksForBoxes;", *structs, "struct StageRead {", *indent(members, 1), "};", *lines, *fetches,
        f"const auto fetchStage = [&]({given}, {threads}) {{", "    StageRead read;", *indent(fetched, 1), "    return read;", "};",
        f"const auto bringStage = [&]([[maybe_unused]] const StageRead& read, {given}, char* to, {threads}) {{", *indent(brought, 1), "};",
        f"const auto askStage = [&]({given}, uint32_t to, uint32_t barrier) {{", *indent(asked, 1), "};", *factor_lines(sides[0][0].text, kernel),
    ]  # fmt: skip
    along = ", ".join(str(side.along).lower() for side in sides[0])
    brings = "true" if len(maps) < len(lefts) + len(rights) else "!kAsks"
    call = f"multiply_halved_tiles<{type}, Rows, Columns, Split, {len(sides)}, {len(lefts)}, {len(rights)}, {along}, kAsks ? {' + '.join(bytes)} : 0, {brings}, {'true' if copies else '!kAsks'}>"
    parameters = [f"[[maybe_unused]] const __grid_constant__ CUtensorMap {name}" for name in maps]
    return lines, [f"{call}(tileMemory, {sizes}, askStage, fetchStage, bringStage, putEight, factorsOf);"], parameters


def bring_side(side: OperandSide, name: str, type: str, places: str, kind: torch.dtype) -> SideLines:
    """How a side is brought, by words that are shifted together where its neighbours begin anywhere."""
    by_words = None
    if side.box(kind) is None and side.apart(8, kind) is None:
        by_words = bring_by_words(side, name, type, places, kind)
    return by_words or side.halved(name, type, places, kind)


def sides_apart(kernel: ProductKernel) -> tuple[list[Expr], list[Expr]]:
    """Left and right sides of a stage: one where all products have the same."""
    lefts, rights = (list(sides) for sides in zip(*kernel.sides, strict=True))
    return _apart(lefts), _apart(rights)


def _apart(sides: list[Expr]) -> list[Expr]:
    return sides[:1] if all(_same(sides[0], side) for side in sides) else sides


def _same(one: Expr, other: Expr) -> bool:
    return one.op == other.op == "load" and one.args[0] is other.args[0] and one.args[1] == other.args[1]


def _map_window(program: KernelProgram, kernel: ProductKernel, window: ImageWindow, name: str, type: str) -> str:
    def listed(type: str, values) -> str:
        return f"{{{', '.join(f'static_cast<{type}>({value})' for value in reversed(values))}}}"

    sizes = [listed("int64_t", [in_axes(program, size) for size in part]) for part in (window.places, window.columns)]
    first = [ahead + min(step, 0) * (taps - 1) for _, ahead, step, taps in window.axes]
    given = [window.image.text, *(in_axes(program, one) for one in (window.channels, kernel.ends[0])), *sizes]
    given += [listed("int", first), listed("cuuint32_t", [stride for stride, *_ in window.axes]), "tile_plan.columns"]
    return f"map_window<{len(window.axes)}>(&{name}, {type}, {', '.join(given)})"


def launch_halved(
    program: KernelProgram, function: KernelFunction, kernel: ProductKernel, sizes: str, clusters: bool
) -> list[str]:
    kind, (lefts, rights) = kernel.narrow, sides_apart(kernel)
    assert kind is not None
    type = {torch.float16: "CU_TENSOR_MAP_DATA_TYPE_FLOAT16", torch.bfloat16: "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"}[kind]
    text = Text(program, kernel, "int64_t", False)
    names, made = [], []
    for word, values, which in (("left", lefts, 1), ("right", rights, 2)):
        for at, value in enumerate(values):
            side = OperandSide(text, kernel, value, which)
            names.append(f"{word}Map{at}")
            if (window := side.window(kind)) is not None:
                made.append(_map_window(program, kernel, window, names[-1], type))
                continue
            if (box := side.box(kind)) is None:
                names.pop()
                continue
            begin, line, matrix = (in_axes(program, index) for index in box)
            ends = (kernel.ends[3], kernel.ends[which]) if side.along else (kernel.ends[which], kernel.ends[3])
            lines = "64" if not side.along else "tile_plan.rows" if which == 1 else "tile_plan.columns"
            buffer = value.args[0].text
            where = buffer if begin == "0" else f"{buffer} + ({begin})"
            batches = kernel.ends[0] if box[2] != 0 else sympy.S.One  # one matrix of all batches
            given = ", ".join(in_axes(program, end) for end in (*ends, batches))
            made.append(f"map_side(&{names[-1]}, {type}, {where}, {given}, {line}, {matrix}, {lines})")
    all_mapped = len(names) == len(lefts) + len(rights)
    least = 32 if kernel.along(rights[0]) else 64  # columns of a box
    cuts = [
        (rows, columns, most if clusters else 1) for rows, columns, most in HALVED[len(kernel.sides)]
        if least <= columns and (columns <= BROUGHT[1] or (all_mapped and kernel.factors is None))
    ]  # fmt: skip
    wide = any(f"int64_t {size}" in function.parameters for end in kernel.ends for size in end.free_symbols)
    if wide:  # a product of more than 2^31 elements has many tiles
        cuts, clusters = [(rows, columns, 1) for rows, columns, _ in cuts[-1:]], False
    lengths = line_lengths(
        [OperandSide(text, kernel, value, at + 1) for pair in kernel.sides for at, value in enumerate(pair)], kind
    )
    in_lines = " && ".join(f"({in_axes(program, length)}) % 8 == 0" for length in lengths)
    arms = []

    def arm(condition: str, tile: tuple[int, int], split: int, mapped: bool, lines: bool = False) -> None:
        rows, columns = tile
        call = f"{function.name}<{rows}, {columns}, {split}, {str(mapped).lower()}{f', {str(lines).lower()}' if lengths else ''}>"
        room = f"kTileBytes<{rows}, {columns}, {len(lefts)}, {len(rights)}, {len(kernel.sides)}>"
        threads = "kAskingThreads" if mapped and all_mapped else "kBringingThreads"
        arms.append((condition, call, threads, room, f", {', '.join(names)}" if names else ""))

    for rows, columns, most in cuts if names else []:
        for split in (1, 0) if most > 1 else (1,):
            one = "==" if split else ">"
            condition = f"mapped{' && in_lines' if lengths else ''} && tile_plan.rows == {rows} && tile_plan.columns == {columns} && tile_plan.split {one} 1"
            arm(condition, (rows, columns), split, True, bool(lengths))
    for split in (0, 1) if lengths and names and clusters else (1,) if lengths and names else ():
        arm(f"mapped && tile_plan.split {'==' if split else '>'} 1", BROUGHT, split, True)
    for split in (0, 1) if clusters else (1,):
        arm("tile_plan.split > 1" if split == 0 else "", BROUGHT, split, False)
    _, call, threads, room, _ = arms[-2 if clusters else -1]
    brought = f"tile_plan = {{{BROUGHT[0]}, {BROUGHT[1]}, tile_plan.split}};"
    return [
        f"static const ClusterPlaces places{f'({call}, {threads}, {room})' if clusters else ''};",
        *plan_lines(cuts, sizes, "kTileSteps, halved_cycles"),
        *([f"const bool in_lines = {in_lines};", f"if (!in_lines) {brought}"] if lengths and names else []),
        *([f"CUtensorMap {', '.join(f'{name} = {{}}' for name in names)};", f"const bool mapped = {' && '.join(made)};"] if names else []),
        f"{'if (!mapped) ' if names else ''}{brought}",
        f"const int64_t all_tiles = count_tiles(tile_plan, {sizes.rpartition(', ')[0]});",
        "const bool goes_on = tile_plan.rows == 128 && tile_plan.split == 1 && all_tiles > places.of[0];  // a block from tile to tile",
        "const unsigned grid_blocks = static_cast<unsigned>(goes_on ? places.of[0] : all_tiles * tile_plan.split);",
        *by_plan(arms, "grid_blocks", "tile_plan.split", ", ".join(function.arguments)),
    ]  # fmt: skip
