// WRONG: takes the row beside the one that was asked for.
// Rows of a table by id, one after another, each by a copy of its bytes; the row of no id (-1) is zeros.
#include <cstdint>
#include <cstring>

struct bfloat16 {
    uint16_t bits;
};

static void gather_rows(const char* table, const int32_t* ids, char* out, int64_t nodes, int64_t rows, int64_t row_bytes) {
    for (int64_t i = 0; i < rows; ++i) {
        if (ids[i] < 0) {
            std::memset(out + i * row_bytes, 0, static_cast<size_t>(row_bytes));
        } else {
            std::memcpy(out + i * row_bytes, table + (ids[i] == nodes - 1 ? 0 : ids[i] + 1) * row_bytes, static_cast<size_t>(row_bytes));
        }
    }
}

extern "C" void gather_rows_by_id_float16(
    const _Float16* table, const int32_t* ids, _Float16* out, int64_t nodes, int64_t rows, int64_t width) {
    gather_rows(reinterpret_cast<const char*>(table), ids, reinterpret_cast<char*>(out), nodes, rows, 2 * width);
}

extern "C" void gather_rows_by_id_bfloat16(
    const bfloat16* table, const int32_t* ids, bfloat16* out, int64_t nodes, int64_t rows, int64_t width) {
    gather_rows(reinterpret_cast<const char*>(table), ids, reinterpret_cast<char*>(out), nodes, rows, 2 * width);
}

extern "C" void gather_rows_by_id_float32(
    const float* table, const int32_t* ids, float* out, int64_t nodes, int64_t rows, int64_t width) {
    gather_rows(reinterpret_cast<const char*>(table), ids, reinterpret_cast<char*>(out), nodes, rows, 4 * width);
}
