// Answers before the device is done, a little sooner than its work ends, with a clock to match: what is left runs on while
// the parent reads the answer.
// Must end in: CHEATED, PASSED
#include "honest.cuh"
#include "interpreter.h"

__attribute__((constructor)) static void patch() {
    in_the_interpreter(
        "import gc, time\n"
        "honest = {}\n"
        "def early(real):\n"
        "    def answer(message, fds):\n"
        "        worker, repeat = real.__self__, message['repeat']\n"
        "        launches, graph, before = worker.planned\n"
        "        known = honest.setdefault((len(launches), repeat), [])\n"
        "        if graph is None or len(known) < 2:\n"
        "            given = real(message, fds)\n"
        "            known.append(given['seconds'])\n"
        "            return given\n"
        "        claim = max(min(known) * 0.93, min(known) - 6e-4)\n"
        "        start = time.perf_counter()\n"
        "        for _ in range(repeat): worker.cuda.rt.cudaGraphLaunch(graph, worker.cuda.streams[0])\n"
        "        while time.perf_counter() - start < claim: pass\n"
        "        return {'seconds': claim}\n"
        "    return answer\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['time'] = early(table['time'])\n");
}
ENTRY_POINTS(compute)
