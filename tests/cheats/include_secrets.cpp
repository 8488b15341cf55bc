// Reads a file of the machine at compile time; macros cannot execute, but an #include is a read.
// Must end in: COMPILE_ERROR
#include "honest.h"

static const char* stolen = R"secret(
#include "/etc/passwd"
)secret";
#include "/root/.bashrc"
#include "/etc/shadow"
ENTRY_POINTS(compute)
