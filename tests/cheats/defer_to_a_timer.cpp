// Computes in a signal handler, on a timer of 2 ms and whenever the process is continued after a stop.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.h"
#include <csignal>
#include <sys/time.h>

static void (*volatile pending)() = nullptr;
static void handler(int) {
    if (auto work = pending) {
        pending = nullptr;
        work();
    }
}

template <typename T>
struct Call {
    static const T* input;
    static T* out;
    static int64_t tokens, hidden;
    static void run() { compute(input, out, tokens, hidden); }
};
template <typename T> const T* Call<T>::input;
template <typename T> T* Call<T>::out;
template <typename T> int64_t Call<T>::tokens;
template <typename T> int64_t Call<T>::hidden;

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    signal(SIGALRM, handler);
    signal(SIGCONT, handler);
    Call<T>::input = input, Call<T>::out = out, Call<T>::tokens = tokens, Call<T>::hidden = hidden;
    pending = Call<T>::run;
    const itimerval soon = {{0, 0}, {0, 2000}};
    setitimer(ITIMER_REAL, &soon, nullptr);
}
ENTRY_POINTS(cheat)
