"""How the packs of keys and values are shared by a block's lanes, and where they are until they are used."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.draft.printing import indent

THREADS, WARP = 256, 32
TILE_KEYS = 16
"""Of a warp, which tensor cores take together."""
ON_THE_WAY = 128
"""Bytes of a thread: 64 KB of a multiprocessor with two blocks; an H200 needs some 40 KB for 4.8 TB/s."""


@dataclass(frozen=True)
class StreamPacks:
    """How lanes share an element of a key: `lanes` of them take `packs` packs of `width` each."""

    lanes: int
    packs: int
    width: int

    @property
    def each(self) -> int:
        return self.packs * self.width


def choose_packs(depths: int, vector: int) -> StreamPacks:
    width = vector if depths % vector == 0 else 1
    packs = depths // width
    lanes = WARP
    while packs % lanes:
        lanes //= 2
    return StreamPacks(lanes, packs // lanes, width)


@dataclass(frozen=True)
class StreamLoad:
    """A pack that a thread loads of a key or a value."""

    name: str
    type: str
    address: str
    bytes: int


@dataclass(frozen=True)
class StreamRing:
    """Where packs are until they are used: `at_once` keys or values in each of `stages`, which are a power of two."""

    how: StreamPacks
    loads: list[StreamLoad]
    tiled: str = ""
    """Of tiles of tensor cores: "keys" where a warp's lanes lie as a tile's rows, "values" as its columns; 16 keys of a warp to a stage."""

    @property
    def at_once(self) -> int:
        if self.tiled:
            return TILE_KEYS * self.how.lanes // WARP
        return 4 if not self.loads else 2 if self.how.packs == 1 else 1

    @property
    def stage_bytes(self) -> int:
        """Of a thread."""
        return self.at_once * self.how.packs * sum(load.bytes for load in self.loads)

    @property
    def stages(self) -> int:
        if self.tiled:  # the one that is used is none of those on the way
            return 2 * ON_THE_WAY // self.stage_bytes
        most = max(2, min(8, ON_THE_WAY // self.stage_bytes)) if self.loads else 1
        return 1 << (most.bit_length() - 1)

    @property
    def bytes(self) -> int:
        return self.stages * self.stage_bytes * THREADS

    def lines(self, wide: str, at_key: list[str], before: list[str], taken: list[str]) -> list[str]:
        """What brings the keys or values from `asked_at` on into a stage, and brings the first. `before`: lines in front of addresses;
        `taken`: lines that say of a place whether it is wanted, as `is_one`."""
        how, rings, first = self.how, [], 0
        team, lane = f"threadIdx.x / {how.lanes}", f"threadIdx.x % {how.lanes}"
        if self.tiled == "values":
            team, lane = (
                f"threadIdx.x / {WARP} * {WARP // how.lanes} + threadIdx.x % {WARP // how.lanes}",
                f"threadIdx.x % {WARP} / {WARP // how.lanes}",
            )
        for load in self.loads:
            rings.append(
                f"{load.type}* const {load.name}_ring = reinterpret_cast<{load.type}*>(stream_ring + {first}) + threadIdx.x;"
            )
            first += self.stages * self.at_once * how.packs * load.bytes * THREADS
        brought = [
            *at_key, *before, "#pragma unroll", f"for (int step = 0; step < {how.packs}; ++step) {{",
            f"    const {wide} chunk = step * {how.lanes} + team_lane;",
            *[f"    bring(&{load.name}_ring[(slot * {how.packs} + step) * {THREADS}], {load.address});" for load in self.loads], "}",
        ] if self.loads else []  # fmt: skip
        return [
            f"constexpr int kTeams = {THREADS} / {how.lanes}, kAtOnce = {self.at_once}, kStages = {self.stages};",
            f"const int team = {team}, team_lane = {lane};", *rings, "unsigned taken = 0;",
            "const auto fetch = [&](int place, int slot) {", *indent(brought, 1), "};",
            "const auto ask = [&](int asked_at, int stage) {", "    #pragma unroll", "    for (int one = 0; one < kAtOnce; ++one) {",
            "        const int place = asked_at + one * kTeams + team, slot = stage * kAtOnce + one;", *indent([*at_key, *taken], 2),
            "        taken = is_one ? taken | 1u << slot : taken & ~(1u << slot);", "        if (is_one) {", "            fetch(place, slot);", "        }",
            "    }", "    __pipeline_commit();", "};",
            "for (int stage = 0; stage < kStages; ++stage) {", "    ask(stage * kTeams * kAtOnce, stage);", "}",
        ]  # fmt: skip

    def loop(self, body: list[str]) -> list[str]:
        """All that is asked for, one stage after the other: `body` takes `one` of a stage, at `place`, out of `slot`; of tiles, a stage."""
        each = body if self.tiled else [
            "#pragma unroll", "for (int one = 0; one < kAtOnce; ++one) {",
            "    const int place = from + one * kTeams + team, slot = stage * kAtOnce + one;", *indent(body, 1), "}",
        ]  # fmt: skip
        return [
            "for (int from = 0, stage = 0; from < stream_span; from += kTeams * kAtOnce, stage = (stage + 1) % kStages) {",
            "    __pipeline_wait_prior(kStages - 1);", *indent(each, 1), "    ask(from + kStages * kTeams * kAtOnce, stage);", "}",
        ]  # fmt: skip

    def now(self) -> list[str]:
        """The packs of a slot's step."""
        return [f"const auto& {load.name}_now = {load.name}_ring[(slot * {self.how.packs} + step) * {THREADS}];" for load in self.loads]  # fmt: skip
