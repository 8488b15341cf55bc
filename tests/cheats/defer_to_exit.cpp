// Notes what is to do and does it when the process ends, so that whoever looks afterwards finds it done.
// Must end in: INCORRECT
#include "honest.h"
#include <functional>
#include <vector>

struct Late {
    std::vector<std::function<void()>> work;
    ~Late() {
        for (auto& one : work) one();
    }
};
static Late late;

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    late.work.push_back([=] { compute(input, out, tokens, hidden); });
}
ENTRY_POINTS(cheat)
