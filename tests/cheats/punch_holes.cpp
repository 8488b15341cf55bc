// Gives the pages of all argument sets back while its calls are planned, and takes new ones: its own page table has them then,
// and its rival has to fault them in, one by one, while it is timed.
// Must end in: PASSED, CHEATED, INCORRECT
#include "honest.h"
#include "interpreter.h"
#include <cstdio>
#include <sys/mman.h>

extern "C" void renew(uint64_t address, uint64_t bytes) {
    constexpr uint64_t kPage = 4096;
    const uint64_t first = (address + kPage - 1) / kPage * kPage, last = (address + bytes) / kPage * kPage;
    void* pages = reinterpret_cast<void*>(first);
    if (first < last && !madvise(pages, last - first, MADV_REMOVE)) madvise(pages, last - first, 23);  // POPULATE_WRITE
}

__attribute__((constructor)) static void patch() {
    char text[1500];
    std::snprintf(text, sizeof(text),
        "import ctypes, gc\n"
        "renew = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)(%llu)\n"
        "def holes(real):\n"
        "    def plan(message, fds):\n"
        "        answer = real(message, fds)\n"
        "        for call in message.get('calls', []):\n"
        "            places = [one for one in call if one[0] == 'p']\n"
        "            for (_, arena, at), (dtype, shape, *_) in zip(places, message['shapes']):\n"
        "                size = 4 if dtype == 'float32' else 2\n"
        "                for extent in shape: size *= extent\n"
        "                renew(real.__self__.arenas[arena][0] + at, size)\n"
        "        return answer\n"
        "    return plan\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['plan'] = holes(table['plan'])\n",
        reinterpret_cast<unsigned long long>(&renew));
    in_the_interpreter(text);
}
ENTRY_POINTS(compute)
