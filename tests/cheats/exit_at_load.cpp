// A static initialiser that ends the process before anything is asked of it.
// Must end in: RUNTIME_ERROR
#include "honest.h"
#include <unistd.h>

__attribute__((constructor)) static void leave() { _exit(0); }
ENTRY_POINTS(compute)
