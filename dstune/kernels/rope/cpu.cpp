// Rotary position embedding in place, on a possibly strided view.
#include "api.h"
#include "rope/rotate.h"

using namespace dstune;

namespace {

template <class T>
void run(void* x, int64_t token_stride, int64_t head_stride, const Rotation& rotation,
         int64_t tokens, int64_t heads, int64_t threads) {
  bool is_small = tokens * heads * rotation.half_dim < 49152;
  parallel_ranges(tokens, threads, is_small, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++)
      rotation.rotate(token, (T*)x + token * token_stride, head_stride, heads);
  });
}

}  // namespace

DSTUNE_API_SHORT(apply_rope, (void* x, int64_t token_stride, int64_t head_stride,
                              const int64_t* positions, const float* cos, const float* sin,
                              int64_t tokens, int64_t heads, int64_t half_dim,
                              int64_t interleaved, int64_t dtype, int64_t threads)) {
  auto f = dtype == kF32 ? run<float> : run<bf16>;
  f(x, token_stride, head_stride, {positions, cos, sin, half_dim, interleaved}, tokens, heads,
    threads);
}
