// Writes rows into the cache at their slots, quantising where the cache is int8.
#include "api.h"
#include <type_traits>

#include "vec.h"

using namespace dstune;

namespace {

// One row of n elements; an int8 row also gets its scale.
template <class In, class Out>
void store_row(const In* in, Out* out, float* scale, int64_t n) {
  if constexpr (std::is_same_v<Out, int8_t>) {
    v16f amax{};
    for (int64_t i = 0; i < n; i += 16) amax = vmax(amax, vabs(load_at(in, i, n)));
    *scale = fmaxf(hmax(amax) / 127.f, 1e-6f);
    float inverse = 1.f / *scale;
    for (int64_t i = 0; i < n; i += 16) {
      v16f x = load_at(in, i, n) * inverse;
      store_at(out, i, n, vmin(vmax(x, splat(-127.f)), splat(127.f)));
    }
  } else {
    for (int64_t i = 0; i < n; i += 16) store_at(out, i, n, load_at(in, i, n));
  }
}

template <class In, class Out>
void run(const void* rows, int64_t token_stride, int64_t head_stride, void* cache, float* scale,
         const int64_t* slots, int64_t tokens, int64_t heads, int64_t dim, int64_t threads) {
  bool is_small = tokens * heads * dim < 98304;
  parallel_ranges(tokens, threads, is_small, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++) {
      if (slots[token] < 0) continue;
      for (int64_t head = 0; head < heads; head++) {
        int64_t row = slots[token] * heads + head;
        store_row((const In*)rows + token * token_stride + head * head_stride,
                  (Out*)cache + row * dim, scale ? scale + row : nullptr, dim);
      }
    }
  });
}

template <class In>
auto for_cache(int64_t dtype) {
  return dtype == kF32    ? run<In, float>
         : dtype == kBF16 ? run<In, bf16>
         : dtype == kF16  ? run<In, half>
                          : run<In, int8_t>;
}

}  // namespace

// rows [tokens, heads, dim] -> cache [slots, heads, dim], scale [slots, heads] or null.
DSTUNE_API_SHORT void dstune_write_cache(const void* rows, int64_t token_stride,
                                         int64_t head_stride, void* cache, float* scale,
                                         const int64_t* slots, int64_t tokens, int64_t heads,
                                         int64_t dim, int64_t dtype, int64_t cache_dtype,
                                         int64_t threads) {
  auto f = dtype == kF32 ? for_cache<float>(cache_dtype) : for_cache<bf16>(cache_dtype);
  f(rows, token_stride, head_stride, cache, scale, slots, tokens, heads, dim, threads);
}
