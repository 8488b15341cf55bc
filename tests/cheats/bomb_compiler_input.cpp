// A file without an end, as the compiler's input: it would read until its addresses are full.
// Must end in: COMPILE_ERROR
#include "honest.h"
#include "/dev/zero"
ENTRY_POINTS(compute)
