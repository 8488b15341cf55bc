"""How a Program is computed, as flat records: what is searched, what agents may edit, what stands at the head of a text."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError

from kernels.spec import Device, Frozen

HEAD = "// schedule: "


class SketchRecord(Frozen):
    names: ClassVar[dict[str, str]] = {}
    """What a search calls those of its numbers that it may choose."""

    def texts(self, searched: bool) -> list[str]:
        """These numbers in a text, in their order: by name where they are the search's."""
        return [name if searched else str(getattr(self, own)) for own, name in self.names.items()]


class Elements(SketchRecord):
    """A thread computes `items` packs of `vector` neighbouring elements; folds of few elements it does alone."""

    sketch: Literal["elements"] = "elements"
    vector: int = 1
    items: int = 1
    threads: int = 256
    ragged: bool = False
    """Whether the version's packs are of one element, and a thread takes `vector` of them together, the last ones in part."""
    names: ClassVar[dict[str, str]] = {"threads": "THREADS", "items": "EACH"}


class Turned(SketchRecord):
    """Tiles of `along` elements by `across`, through shared memory, where reads lie along one axis and writes along another."""

    sketch: Literal["turned"] = "turned"
    vector: int = 1
    along: int = 64
    across: int = 64
    threads: int = 128
    names: ClassVar[dict[str, str]] = {"threads": "THREADS", "along": "ALONG"}


class Rows(SketchRecord):
    """A team of threads reduces a row of the innermost axes."""

    sketch: Literal["rows"] = "rows"
    vector: int = 1
    threads: int = 256
    """Of a block, at most where `team` is 0."""
    team: int = 0
    """Threads of a row, a power of two of at most 64; 0: one block to a row."""
    items: int = 0
    """Packs of a row that a thread keeps in registers; 0: rows are read again in every pass, by one block each."""
    longest: int | None = None
    """Packs of the longest row that it is for; None: any."""
    few: bool = False
    """Whether it is for fewer rows than keep the device busy: its numbers stay as they are where others are searched."""
    unit: int = 1
    """Packs that count as one where `items` is searched: packs may be of one element."""
    by_size: bool = False
    """Whether the host picks packs a thread, 1, 2, 4 or 8 times `unit`, threads and blocks of a row for the size at hand."""
    clusters: bool = True
    """Where it does: whether rows may be shared by blocks."""
    ragged: bool = False
    """Whether the version's packs are of one element, and a thread takes `vector` of them together, from where 16 bytes are aligned."""
    held: bool = True
    """Whether a thread keeps what a later pass would compute again for much, where it keeps its packs."""
    wanted: int = 0
    """Where the host picks by size: packs a thread that it must take, in `unit`s; 0: any."""
    split: int = 0
    """Likewise: blocks of a row; 0: any."""
    resident: int = 0
    """Likewise, where one pass over memory makes all reductions (codegen/online.py): 1: rows stay in registers, 2: they do not; 0: either."""
    names: ClassVar[dict[str, str]] = {"wanted": "ITEMS", "split": "SPLIT", "resident": "RESIDENT"}
    """Where the host picks by size."""


class RowTiles(SketchRecord):
    """Rows whose elements lie apart, beside those of the next row: as many as there is room for stand in a block's shared memory."""

    sketch: Literal["row_tiles"] = "row_tiles"
    vector: int = 1
    threads: int = 512


LONGEST_TEAM = 64
"""Threads of a row at most where a block takes several."""
WARP = 32
MOST_SINGLE = 1280
"""Elements of a row of packs of one up to which a warp, or two from 512 on, do for it."""


def row_team(longest: int, items: int, unit: int, threads: int, least: int = 1) -> tuple[int, int, int]:
    """(packs that a thread keeps, threads of a row or 0 where it is a block's, threads of a block) for rows of at most `longest` packs.

    `items`: of which a thread is to keep, in `unit`s; 0: two, or four where a warp then does for a row. `least`: threads of a row.
    """
    few = 4 if 2 * WARP * unit < longest <= 4 * WARP * unit else 2
    kept = max((items or few) * unit, -(-longest // 1024))
    if items == 0 and unit > 1 and 2 * WARP < longest <= MOST_SINGLE:
        kept = -(-longest // (WARP if longest <= 16 * WARP else 2 * WARP))
    needed = -(-longest // kept)
    team = max(least, 1 << max(0, needed - 1).bit_length())
    return (kept, team, threads) if team <= LONGEST_TEAM else (kept, 0, -(-needed // WARP) * WARP)


ALONE = 128
"""Packs of columns of a block whose threads reduce a pack each, alone: nothing is combined."""
TILES = (4, 8, 16, WARP, ALONE)
"""Packs of columns that a block may take."""


class Columns(SketchRecord):
    """A reduction over outer axes: a block takes `lanes` packs of columns and `threads / lanes` rows at a time.

    `split` blocks, a cluster, share the rows. Where one of the two is 0, the host picks it for the size at hand.
    """

    sketch: Literal["columns"] = "columns"
    vector: int = 1
    lanes: int = 0
    threads: int = 512
    split: int = 0
    unroll: int = 8
    """Rows whose loads are in flight at once."""
    names: ClassVar[dict[str, str]] = {"threads": "THREADS", "lanes": "LANES", "split": "SPLIT", "unroll": "UNROLL"}


class Stream(SketchRecord):
    """Queries of the same keys to a cluster of blocks; how many queries and blocks, the host picks for the size at hand."""

    sketch: Literal["stream"] = "stream"
    vector: int = 1
    threads: int = 256


class Tiles(SketchRecord):
    """A product of matrices by tiles; how large these are and how many blocks share their depth, the host picks for the size at hand."""

    sketch: Literal["tiles"] = "tiles"


class Steps(SketchRecord):
    """A thread to each element of what a loop carries."""

    sketch: Literal["steps"] = "steps"


class Phases(SketchRecord):
    """A block, as wide as it has work, to a unit: definitions one after another, what they hand on in its memory."""

    sketch: Literal["phases"] = "phases"
    clusters: bool = False
    """Whether up to eight blocks share a unit where units are few: of which single numbers are all that is kept."""


Sketch = Annotated[
    Elements | Turned | Rows | RowTiles | Columns | Stream | Tiles | Steps | Phases, Field(discriminator="sketch")
]


class KernelPlan(Frozen):
    members: tuple[str, ...]
    """Names of the definitions that it computes."""
    sketch: Sketch
    pdl: bool = False
    """Programmatic dependent launch, from sm_90 on: it may be set up while the kernel before it drains, and waits before memory."""

    @property
    def ragged(self) -> int:
        """Elements of a pack where the program's packs are of one; 0: they are as the program says."""
        return self.sketch.vector if isinstance(self.sketch, Elements | Rows) and self.sketch.ragged else 0


class ScheduleVersion(Frozen):
    """Kernels for the calls that `when` holds for: `longest` packs a row at most, of kernels whose rows are not picked by size, and no more
    than their sketches say; fewer than `most_rows` rows."""

    vector: int = 1
    narrow: bool = True
    """32-bit indices: guarded by the number of elements."""
    longest: int | None = None
    most_rows: int | None = None
    kernels: tuple[KernelPlan, ...]


class Schedule(Frozen):
    """Versions in the order in which the host tries them, by dtype; the last of each has no guard and is scalar: total."""

    versions: dict[str, tuple[ScheduleVersion, ...]]
    device: Device = "cuda"
    numbers: dict[str, int] = Field(default_factory=dict)
    """What concerns no kernel by itself: TRIGGER_WHEN on CUDA; PARALLEL_FROM and STREAM of C++."""

    def head(self) -> str:
        """The comment at the head of an emitted text."""
        return f"{HEAD}{self.model_dump_json(exclude_defaults=False)}\n"


def read_head(text: str) -> Schedule | None:
    """The schedule that stands at the head of an emitted text."""
    first = text.split("\n", 1)[0]
    try:
        return Schedule.model_validate_json(first.removeprefix(HEAD)) if first.startswith(HEAD) else None
    except ValidationError:
        return None
