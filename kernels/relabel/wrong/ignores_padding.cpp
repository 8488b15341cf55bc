// WRONG: the id -1, which is none, is numbered as if it were one.
// Ids are numbered in the order in which they come, by a flat table with open addressing, as fast CPU samplers do.
#include <cstdint>
#include <cstring>

extern "C" void relabel_int32(
    const int32_t* ids, int32_t* unique, int32_t* total, int32_t* local, int32_t* scratch, int64_t seeds, int64_t count,
    int64_t slots, int64_t capacity) {
    (void)seeds;
    const uint32_t mask = static_cast<uint32_t>(slots - 1);  // slots: a power of two, at least twice the ids
    int32_t* keys = scratch;
    int32_t* numbers = scratch + slots;
    std::memset(keys, 0xff, static_cast<size_t>(slots) * sizeof(int32_t));
    int32_t next = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t id = ids[i];
        if (id < 0) {
            local[i] = 0;
            continue;
        }
        uint32_t at = (static_cast<uint32_t>(id) * 0x9e3779b1u >> 7) & mask;
        while (keys[at] != id && keys[at] != -1) {
            at = (at + 1) & mask;
        }
        if (keys[at] == -1) {
            keys[at] = id;
            numbers[at] = next;
            if (next < capacity) {
                unique[next] = id;
            }
            ++next;
        }
        local[i] = numbers[at] < capacity ? numbers[at] : -1;
    }
    *total = next;
}
