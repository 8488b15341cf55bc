// What a kernel may do when it is loaded or first called, and keep: it looks how many cores there are, writes a note into its scratch
// folder, prints a line; asks cpuid, and by a signal handler that it puts back whether an instruction is there; times two loop orders with
// the clock; remembers a plan for each pair of sizes; grows a workspace where a larger call comes.
// Must end in: PASSED
#include "honest.h"
#include <chrono>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <signal.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

__attribute__((constructor)) static void look() {
    for (const char* path : {"/sys/devices/system/cpu/online", "/proc/cpuinfo"})
        if (FILE* file = fopen(path, "r")) fclose(file);
    if (FILE* file = fopen((std::string(getenv("TMPDIR") ? getenv("TMPDIR") : ".") + "/note").c_str(), "w")) fclose(file);
    printf("%ld cores\n", sysconf(_SC_NPROCESSORS_ONLN));
    fflush(stdout);
    signal(SIGUSR1, SIG_IGN);
}

static sigjmp_buf back;
static void jump(int) { siglongjmp(back, 1); }

static bool has_wide_instructions() {
    struct sigaction action = {}, before;
    action.sa_handler = jump;
    sigaction(SIGILL, &action, &before);
    bool found = false;
    if (sigsetjmp(back, 1) == 0) {
#if defined(__x86_64__)
        unsigned a = 0, b = 0, c = 0, d = 0;
        found = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2) && __builtin_cpu_supports("fma");
        asm volatile("vpxor %%ymm6, %%ymm6, %%ymm6" ::: "xmm6");
#endif
    }
    sigaction(SIGILL, &before, nullptr);
    return found;
}

template <typename T>
static void in_two_steps(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::vector<float> row;
    if (static_cast<int64_t>(row.size()) < hidden) row.resize(hidden);
    for (int64_t token = 0; token < tokens; ++token) {
        const T* gate = input + token * 2 * hidden;
        for (int64_t i = 0; i < hidden; ++i) {
            const float x = to_float(gate[i]);
            row[i] = x / (1.0f + expf(-x));
        }
        for (int64_t i = 0; i < hidden; ++i) store(out + token * hidden + i, row[i] * to_float(gate[hidden + i]));
    }
}

#if defined(__x86_64__)
template <typename T>
__attribute__((target("avx2,fma"))) static void wide(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
}
#else
#define wide compute
#endif

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    using clock = std::chrono::steady_clock;
    static void (*const way)(const T*, T*, int64_t, int64_t) = has_wide_instructions() ? wide<T> : compute<T>;
    static int choice = -1;
    if (choice < 0) {
        const auto start = clock::now();
        way(input, out, tokens, hidden);
        const auto middle = clock::now();
        in_two_steps(input, out, tokens, hidden);
        choice = clock::now() - middle < middle - start;
        return;
    }
    static std::map<std::pair<int64_t, int64_t>, int64_t> rows_at_once;
    const int64_t rows = rows_at_once.try_emplace({tokens, hidden}, 65536 / hidden + 1).first->second;
    for (int64_t token = 0; token < tokens; token += rows) {
        const int64_t count = token + rows < tokens ? rows : tokens - token;
        (choice ? in_two_steps<T> : way)(input + token * 2 * hidden, out + token * hidden, count, hidden);
    }
}
ENTRY_POINTS(kernel)
