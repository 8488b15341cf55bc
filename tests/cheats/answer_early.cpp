// Answers while the last call is still to come, and makes it before the parent has stopped the clock.
// Must end in: PASSED, CHEATED, INCORRECT
#include "honest.h"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import gc, sys, time\n"
        "main = sys.modules['__main__'].__dict__\n"
        "real_send = main['send']\n"
        "late = []\n"
        "def early(real):\n"
        "    def answer(message, fds):\n"
        "        worker = real.__self__\n"
        "        late[:] = [worker.planned[0][number] for number in message['order'][-1:]]\n"
        "        start = time.perf_counter()\n"
        "        for number in message['order'][:-1]: worker.planned[0][number]()\n"
        "        return {'seconds': time.perf_counter() - start + 1e-6}\n"
        "    return answer\n"
        "def sent(channel, message):\n"
        "    real_send(channel, message)\n"
        "    while late: late.pop()()\n"
        "main['send'] = sent\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['time'] = early(table['time'])\n");
}
ENTRY_POINTS(compute)
