// A library of 200 MB: kept in the store for each such candidate, and copied to the temporary folder for each process of it.
// Must end in: COMPILE_ERROR
#include "honest.h"
asm(".section .rodata\n.fill 200000000, 1, 1\n.text\n");
ENTRY_POINTS(compute)
