// RMSNorm with an optional residual addition; one pass for the sum, one for the scaling.
#include "api.h"
#include "norm/normalise.h"
#include "vec.h"

using namespace dstune;

namespace {

// Rows of x (and of the residual, if any) -> normed rows and, if any, x + residual.
template <class T>
void rows(const T* x, int64_t x_stride, const T* residual, int64_t residual_stride,
          const T* weight, T* normed, T* total, int64_t begin, int64_t end, int64_t dim,
          float eps) {
  for (int64_t row = begin; row < end; row++) {
    const T* in = x + row * x_stride;
    if (total) {
      T* sum = total + row * dim;
      const T* add = residual + row * residual_stride;
      for (int64_t i = 0; i < dim; i += 16)
        store_at(sum, i, dim, load_at(in, i, dim) + load_at(add, i, dim));
      in = sum;  // normalise what was stored, rounded: both results describe the same number
    }
    normalise_row(in, weight, normed + row * dim, dim, eps);
  }
}

template <class T>
void run(const void* x, int64_t x_stride, const void* residual, int64_t residual_stride,
         const void* weight, void* normed, void* total, int64_t tokens, int64_t dim, float eps,
         int64_t threads) {
  parallel_ranges(tokens, threads, tokens * dim < 98304, [&](int64_t begin, int64_t end) {
    rows((const T*)x, x_stride, (const T*)residual, residual_stride, (const T*)weight,
         (T*)normed, (T*)total, begin, end, dim, eps);
  });
}

}  // namespace

DSTUNE_API_SHORT(rms_norm, (const void* x, int64_t x_stride, const void* residual,
                            int64_t residual_stride, const void* weight, void* normed, void* total,
                            int64_t tokens, int64_t dim, float eps, int64_t dtype,
                            int64_t threads)) {
  auto f = dtype == kF32 ? run<float> : run<bf16>;
  f(x, x_stride, residual, residual_stride, weight, normed, total, tokens, dim, eps, threads);
}
