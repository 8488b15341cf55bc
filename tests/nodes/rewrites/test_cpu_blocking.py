"""Passes that become one, and tiles: before and after, and what is left alone. tests/inputs has a kernel for each."""

import pytest

from harness.tunables import tunables
from tests.nodes.rewrites.test_cpu_rewrites import apply, behind

PASSES = """\
    #include <cstdint>

    void f(const float* x, const float* gain, float* y, int64_t rows, int64_t columns) {
        for (int64_t r = 0; r < rows; ++r) {
            const float g = gain[r];
            for (int64_t c = 0; c < columns; ++c) {
                y[r * columns + c] = x[r * columns + c] * g;
            }
        }
        // And its sign.
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t c = 0; c < columns; ++c) {
                y[row * columns + c] = -y[row * columns + c];
            }
        }
    }
"""
TRANSPOSED = """\
    void f(const float* x, float* y, long rows, long columns) {
        for (long r = 0; r < rows; ++r) {
            for (long c = 0; c < columns; ++c) {
                const float v = x[r * columns + c];
                y[c * rows + r] = v * v;
            }
        }
    }
"""


def test_passes_become_one():
    assert behind(apply("loop_fusion", PASSES), "    for (int64_t r") == (
        """\
    for (int64_t r = 0; r < rows; ++r) {
        const float g = gain[r];
        for (int64_t c = 0; c < columns; ++c) {
            y[r * columns + c] = x[r * columns + c] * g;
            // And its sign.
            y[r * columns + c] = -y[r * columns + c];
        }
    }
}
"""
    )


def test_rows_join_where_elements_may_not():
    first = PASSES.replace("= -y[row * columns + c]", "= -y[row * columns]")
    text = apply("loop_fusion", first)
    assert text is not None and text.count("r < rows") == 1 and text.count("c < columns") == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("= -y[row * columns + c]", "= -y[c]"),  # the first row
        ("= -y[row * columns + c]", "= -y[(rows - 1 - row) * columns + c]"),  # a row that is not there yet
        ("row < rows", "row < rows - 1"),
        ("int64_t row = 0", "int64_t row = 1"),
        ("= -y[row * columns + c]", "= -y[row * columns + c] * r"),  # another r
        ("        // And its sign.", "        y[0] = 0;"),
    ],
)
def test_passes_stay_apart(old, new):
    text = PASSES.replace("float* y, ", "float* y, int64_t r, ") if new.endswith("* r") else PASSES
    assert old in text
    assert apply("loop_fusion", text.replace(old, new)) is None


def test_a_sum_is_finished_before_it_is_used():
    text = """\
        void f(const float* x, float* y, long n) {
            float sum = 0.0f;
            for (long i = 0; i < n; ++i) {
                sum += x[i];
            }
            for (long i = 0; i < n; ++i) {
                y[i] = x[i] / sum;
            }
        }
    """
    assert apply("loop_fusion", text) is None


def test_what_is_stored_down_columns_goes_through_a_buffer():
    after = apply("loop_tiling", TRANSPOSED)
    assert [t.name for t in tunables(after)] == ["TILE"]
    assert behind(after, "    for (long r_tile") == (
        """\
    for (long r_tile = 0; r_tile < rows; r_tile += TILE) {
        for (long c_tile = 0; c_tile < columns; c_tile += TILE) {
            std::remove_reference_t<decltype(*y)> tile[TILE * TILE];
            for (long r = r_tile; r < std::min<long>(r_tile + TILE, rows); ++r) {
                for (long c = c_tile; c < std::min<long>(c_tile + TILE, columns); ++c) {
                    const float v = x[r * columns + c];
                    tile[(c - c_tile) * TILE + (r - r_tile)] = v * v;
                }
            }
            for (long c = c_tile; c < std::min<long>(c_tile + TILE, columns); ++c) {
                for (long r = r_tile; r < std::min<long>(r_tile + TILE, rows); ++r) {
                    y[c * rows + r] = tile[(c - c_tile) * TILE + (r - r_tile)];
                }
            }
        }
    }
}
"""
    )


def test_what_is_read_down_columns_needs_none():
    after = apply(
        "loop_tiling",
        TRANSPOSED.replace("x[r * columns + c]", "x[c * rows + r]").replace("y[c * rows + r]", "y[r * columns + c]"),
    )
    assert "tile[" not in after and after.count("for (long") == 4
    assert "y[r * columns + c] = v * v;" in after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[c * rows + r]", "y[r * columns + c]"),  # nothing walks down a column
        ("y[c * rows + r] = v * v;", "y[c * rows] += v * v;"),  # a sum down the columns
        ("y[c * rows + r] = v * v;", "y[c * rows + r] = v * y[(c + 1) * rows + r];"),  # another iteration's
        ("c < columns", "c < r"),  # a triangle
        ("= v * v;", "=\n                    v * v;"),
        ("columns", "TILE"),  # a name of the file's own
    ],
)
def test_tiles_leave(old, new):
    assert old in TRANSPOSED
    assert apply("loop_tiling", TRANSPOSED.replace(old, new)) is None
