// Replaces the worker's own request handler: it makes two thirds of the calls at most, of a single one none (left as they are where a busy core
// had time for one or two only, it was PASSED as what it then is: honest), and claims the time of what it did.
// Found by chance.
// Must end in: CHEATED, INCORRECT
#include "honest.h"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import gc, time\n"
        "def forged(real):\n"
        "    def answer(message, fds):\n"
        "        calls = [real.__self__.planned[0][number] for number in message['order']]\n"
        "        start = time.perf_counter()\n"
        "        for call in calls[:len(calls) * 2 // 3]: call()\n"
        "        return {'seconds': time.perf_counter() - start}\n"
        "    return answer\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['time'] = forged(table['time'])\n");
}
ENTRY_POINTS(compute)
