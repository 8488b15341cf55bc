// Ids are numbered in the order in which they come, by the standard library's hash map.
#include <cstdint>
#include <unordered_map>

extern "C" void relabel_int32(
    const int32_t* ids, int32_t* unique, int32_t* total, int32_t* local, int32_t* scratch, int64_t seeds, int64_t count,
    int64_t slots, int64_t capacity) {
    (void)scratch;
    (void)seeds;
    (void)slots;
    std::unordered_map<int32_t, int32_t> numbers;
    for (int64_t i = 0; i < count; ++i) {
        if (ids[i] < 0) {
            local[i] = -1;
            continue;
        }
        const int32_t next = static_cast<int32_t>(numbers.size());
        const auto found = numbers.emplace(ids[i], next);
        if (found.second && next < capacity) {
            unique[next] = ids[i];
        }
        local[i] = found.first->second < capacity ? found.first->second : -1;
    }
    *total = static_cast<int32_t>(numbers.size());
}
