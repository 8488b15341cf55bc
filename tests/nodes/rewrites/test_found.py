"""Programs that rewrites once got wrong, as random programs had found them: what becomes of each computes what it computed.

The first line of a file names the steps, each of which is applied where it applies; the second one the timed size and what is
special of the program (`emulate/texts.py`).
"""

from __future__ import annotations

import itertools
from pathlib import Path

from harness import device
from harness.records import DeviceFacts
from nodes.rewrites import Facts
from tests.nodes.rewrites.emulate.texts import Text, differences
from tests.nodes.rewrites.steps import H200, where_they_apply

FOUND = sorted((Path(__file__).parent / "found").glob("*.c*"))
CPU = DeviceFacts(
    device="cpu", name="this one", architecture=device.facts("cpu").architecture, units=8, last_level_cache_bytes=32 << 20
)  # fmt: skip


def loaded(path: Path) -> tuple[Text, str]:
    """A program and what its steps make of it."""
    lines = path.read_text().splitlines()
    _, rows, n, *flags = lines[1].removeprefix("// ").split()
    text = "\n".join(itertools.dropwhile(lambda line: line.startswith("//"), lines)) + "\n"
    program = Text({".cu": "cuda", ".cpp": "cpu"}[path.suffix], text, (int(rows), int(n)), tuple(flags))
    facts = Facts(spec=program.spec, device=H200 if path.suffix == ".cu" else CPU)
    return program, where_they_apply(text, lines[0].removeprefix("// "), facts=facts)


def test_what_was_found_stays_mended() -> None:
    wrong = {
        path.name: said for path, said in zip(FOUND, differences([loaded(path) for path in FOUND]), strict=True) if said
    }
    assert not wrong, wrong


TWICE = """\
__global__ void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    y[blockIdx.x * n + i] = 2.0f * x[blockIdx.x * n + i];
  }
}
extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  twice<<<rows, 64, 0, stream>>>(x, y, n);
}
"""


def test_what_is_wrong_is_noticed_and_said() -> None:
    racing = TWICE.replace("y[blockIdx.x * n + i]", "y[blockIdx.x * n + i / 2]")
    changes = [("2.0f *", "2.001f *"), ("i < n;", "i < n - 1;"), ("x[blockIdx.x * n + i]", "x[i]"), ("i < n;", "i < n + 1;"),
               ("2.0f *", "((const float4*)(x + 4 * i))->x * ")]  # fmt: skip
    pairs = [
        (Text("cuda", racing), racing + "\n"),
        *((Text("cuda", TWICE), TWICE.replace(*change)) for change in changes),
    ]
    said = differences(pairs)
    assert "the source itself differs" in said[0] and all("y: " in words for words in said[1:4]), said
    assert "outside its bounds" in said[4] and said[5].startswith("ended with -"), said
