/* A libcudart whose device is the host's memory, so that harness/standalone.py runs without a GPU. Built by the tests.
   Allocations are exact, are filled with 0xCD, and are counted; a failure is asked for by an environment variable. */
#include <stdlib.h>
#include <string.h>

static long alive;

long stand_in_alive(void) { return alive; }
const char *cudaGetErrorString(int code) { return code == 2 ? "out of memory" : "an illegal memory access was encountered"; }
int cudaMalloc(void **pointer, size_t size) {
  if (getenv("STAND_IN_MOST") && size > strtoul(getenv("STAND_IN_MOST"), 0, 10)) return 2;
  *pointer = malloc(size);
  memset(*pointer, 0xCD, size);
  ++alive;
  return 0;
}
int cudaFree(void *pointer) { free(pointer); --alive; return 0; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { (void)kind; memcpy(to, from, size); return 0; }
int cudaStreamCreate(void **stream) { *stream = (void *)0x57; return 0; }
int cudaGetLastError(void) { return 0; }
int cudaDeviceSynchronize(void) { return getenv("STAND_IN_FAULT") ? 700 : 0; }
