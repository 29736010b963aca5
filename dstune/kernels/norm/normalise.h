// RMSNorm of one row.
#pragma once
#include "vec.h"

namespace dstune {

template <class T>
void normalise_row(const T* in, const T* weight, T* out, int64_t dim, float eps) {
  v16f squares{};
  for (int64_t i = 0; i < dim; i += 16) {
    v16f value = load_at(in, i, dim);
    squares += value * value;
  }
  float scale = 1.f / std::sqrt(hsum(squares) / dim + eps);
  for (int64_t i = 0; i < dim; i += 16)
    store_at(out, i, dim, load_at(in, i, dim) * scale * load_at(weight, i, dim));
}

}  // namespace dstune
