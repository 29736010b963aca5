// Rotary position embedding of one token's heads, in place.
#pragma once
#include "vec.h"

namespace dstune {

template <class T>
void rotate_halves(T* x, const float* cos, const float* sin, int64_t half_dim) {
  for (int64_t i = 0; i < half_dim; i += 16) {
    v16f a = load_at(x, i, half_dim), b = load_at(x + half_dim, i, half_dim);
    v16f c = load_at(cos, i, half_dim), s = load_at(sin, i, half_dim);
    store_at(x, i, half_dim, a * c - b * s);
    store_at(x + half_dim, i, half_dim, b * c + a * s);
  }
}

template <class T>
void rotate_pairs(T* x, const float* cos, const float* sin, int64_t half_dim) {
  const v16i even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  const v16i low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
  for (int64_t i = 0; i < half_dim; i += 16) {
    int64_t n = 2 * half_dim, at = 2 * i;
    v16f first = load_at(x, at, n);
    v16f second = at + 16 < n ? load_at(x, at + 16, n) : v16f{};
    v16f a = __builtin_shuffle(first, second, even), b = __builtin_shuffle(first, second, even + 1);
    v16f c = load_at(cos, i, half_dim), s = load_at(sin, i, half_dim);
    v16f ra = a * c - b * s, rb = b * c + a * s;
    store_at(x, at, n, __builtin_shuffle(ra, rb, low));
    if (at + 16 < n) store_at(x, at + 16, n, __builtin_shuffle(ra, rb, low + 8));
  }
}

// A model's tables, [max_len, half_dim], the tokens' places in them, and how pairs lie.
struct Rotation {
  const int64_t* positions;
  const float *cos, *sin;
  int64_t half_dim, interleaved;

  template <class T>
  void rotate(int64_t token, T* heads, int64_t head_stride, int64_t count) const {
    const float* c = cos + positions[token] * half_dim;
    const float* s = sin + positions[token] * half_dim;
    for (T* row = heads; count > 0; count--, row += head_stride) {
      if (interleaved) rotate_pairs(row, c, s, half_dim);
      else rotate_halves(row, c, s, half_dim);
    }
  }
};

}  // namespace dstune
