// Sets thousands of timers before each answer, which go off while the baseline is timed and this process is stopped: an
// interrupt and a signal each, for the kernel.
// Must end in: PASSED, CHEATED
#include "honest.h"
#include "interpreter.h"
#include <cstdio>
#include <csignal>
#include <ctime>

static timer_t timers[3000];
static int made;

extern "C" void arm() {
    if (!made) {
        struct sigevent event = {};
        event.sigev_notify = SIGEV_SIGNAL;
        event.sigev_signo = SIGURG;
        signal(SIGURG, SIG_IGN);
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGRTMIN + 3);
        sigprocmask(SIG_BLOCK, &blocked, nullptr);
        event.sigev_signo = SIGRTMIN + 3;
        while (made < 3000 && timer_create(CLOCK_MONOTONIC, &event, &timers[made]) == 0) ++made;
    }
    for (int i = 0; i < made; ++i) {
        struct itimerspec when = {};
        when.it_value.tv_nsec = 1000000 + i * 10000;  // for 30 ms, one every 10 us
        timer_settime(timers[i], 0, &when, nullptr);
    }
}

__attribute__((constructor)) static void patch() {
    char text[1000];
    std::snprintf(text, sizeof(text),
        "import ctypes, gc\n"
        "arm = ctypes.CFUNCTYPE(None)(%llu)\n"
        "def armed(real):\n"
        "    def answer(message, fds):\n"
        "        given = real(message, fds)\n"
        "        arm()\n"
        "        return given\n"
        "    return answer\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['time'] = armed(table['time'])\n",
        reinterpret_cast<unsigned long long>(&arm));
    in_the_interpreter(text);
}
ENTRY_POINTS(compute)
