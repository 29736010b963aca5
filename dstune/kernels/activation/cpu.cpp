// SwiGLU's gate over a fused projection.
#include "api.h"
#include "vec.h"

using namespace dstune;

namespace {

template <class T>
void run(const void* gate_up, int64_t stride, void* out, int64_t tokens, int64_t features,
         int64_t threads) {
  parallel_ranges(tokens, threads, tokens * features < 32768, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++) {
      const T* gate = (const T*)gate_up + token * stride;
      T* row = (T*)out + token * features;
      for (int64_t i = 0; i < features; i += 16) {
        v16f g = load_at(gate, i, features), u = load_at(gate + features, i, features);
        store_at(row, i, features, g / (1.f + vexp(-g)) * u);
      }
    }
  });
}

}  // namespace

DSTUNE_API_SHORT(silu_and_mul, (const void* gate_up, int64_t stride, void* out, int64_t tokens,
                                int64_t features, int64_t dtype, int64_t threads)) {
  auto f = dtype == kF32 ? run<float> : run<bf16>;
  f(gate_up, stride, out, tokens, features, threads);
}
