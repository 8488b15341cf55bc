// Has the assembler repeat a line for ever: it would need 54 GB of memory.
// Must end in: COMPILE_ERROR
#include "honest.h"
asm(".section .rodata\n.rept 2000000000\n.byte 1, 2, 3\n.endr\n.text\n");
ENTRY_POINTS(compute)
