#pragma once
#include "cuda_emulation.h"
#include "driver.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <array>
#include <cfloat>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <type_traits>

inline void prepare(const driver::Run& run) {
  emulate::backwards = run.backwards;
  setenv("EMULATE_MULTIPROCESSORS", run.multiprocessors, 1);
}
