#pragma once
#include <cuda_pipeline.h>

// Asks for an element, which is there once the thread has waited for its copies: past the registers where the element is one
// that cp.async moves, at once where it is not.
template <typename P>
__device__ __forceinline__ void copy_ahead(P* to, const void* from) {
  if constexpr ((sizeof(P) == 4 || sizeof(P) == 8 || sizeof(P) == 16) && alignof(P) == sizeof(P)) {
    __pipeline_memcpy_async(to, from, sizeof(P));
  } else {
    *to = *static_cast<const P*>(from);
  }
}
