// One matrix-multiply kernel for three precisions: y [M, N] = x [M, K] w [N, K]^T.
//
// All three share a layout of 32-bit groups: a group holds one fp32, two bf16 or four int8 values
// that are neighbours in K. Weights come in panels of 32 columns, [ceil(N/32)][groups][32], padded
// with zeros, so a panel is one contiguous stream. Activations are rows of groups, [M][groups].
// A step broadcasts one activation group against 32 weight groups (two vectors).
//
// Every output is summed by one accumulator in the order of K, whatever M is: a row's result does
// not depend on the rows beside it, to the last bit.
#pragma once
#include <type_traits>

#include "api.h"
#include "vec.h"

namespace dstune {

enum Precision : int64_t { kFp32 = 0, kBf16 = 1, kInt8 = 2 };

constexpr int64_t kPanel = 32;
#if defined(__AVX512F__)
constexpr int kMaxRows = 12;  // 24 of the 32 registers accumulate
#else
constexpr int kMaxRows = 4;
#endif

struct Fp32 {
  static constexpr int64_t kGroup = 1;
  typedef v16f Acc;
  static DSTUNE_INLINE Acc step(Acc acc, uint32_t a, v16u w) {
    float x;
    memcpy(&x, &a, 4);
    return acc + (v16f)w * x;
  }
};

struct Bf16 {
  static constexpr int64_t kGroup = 2;
  typedef v16f Acc;
  static DSTUNE_INLINE Acc step(Acc acc, uint32_t a, v16u w) {
    return add_pairs(acc, v16u{} + a, w);
  }
};

// Activations are stored as value + 128 in uint8, because VNNI multiplies uint8 by int8; the
// accumulators start at -128 times the sum of the column to make up for it. The sums are exact.
struct Int8 {
  static constexpr int64_t kGroup = 4;
  typedef v16i Acc;
  static DSTUNE_INLINE Acc step(Acc acc, uint32_t a, v16u w) {
#if defined(__AVX512VNNI__)
    return (v16i)_mm512_dpbusd_epi32((__m512i)acc, _mm512_set1_epi32(a), (__m512i)w);
#else
    for (int i = 0; i < 4; i++)
      acc += ((v16i)(w << (24 - 8 * i)) >> 24) * (int32_t)(a >> (8 * i) & 255);
    return acc;
#endif
  }
};

// Multiplies `Rows` activation rows by one panel. a_stride counts groups.
template <class C, int Rows>
DSTUNE_INLINE void multiply(const uint32_t* a, int64_t a_stride, const uint32_t* w,
                            int64_t groups, typename C::Acc (&acc)[Rows][2]) {
  // Four base pointers reach twelve rows through scaled addressing, which saves registers.
  const uint32_t* base[(Rows + 2) / 3];
  for (int i = 0; i < (Rows + 2) / 3; i++) base[i] = a + 3 * i * a_stride;
#pragma GCC unroll 2
  for (int64_t g = 0; g < groups; g++) {
    v16u w0 = load_raw<v16u>(w + g * kPanel), w1 = load_raw<v16u>(w + g * kPanel + 16);
#pragma GCC unroll 12
    for (int row = 0; row < Rows; row++) {
      uint32_t x = base[row / 3][g + (row % 3) * a_stride];
      acc[row][0] = C::step(acc[row][0], x, w0);
      acc[row][1] = C::step(acc[row][1], x, w1);
    }
  }
}

// What happens to a finished tile: y = acc * row_scale * column_scale + bias (scales: int8 only).
struct Epilogue {
  const float* row_scale;     // [M] or null
  const float* column_scale;  // [N padded to 32] or null
  const int32_t* offset;      // [N padded to 32] or null, where the accumulators start
  const float* bias;          // [N padded to 32] or null
  const float* keep;          // [M] or null: y += keep * what stood there
};

template <class C, int Rows, class Out>
void tile(const uint32_t* a, int64_t a_stride, const uint32_t* panel, int64_t groups,
          int64_t row, int64_t column, int64_t columns, const Epilogue& e, Out* out,
          int64_t out_stride) {
  typename C::Acc acc[Rows][2];
  for (int half = 0; half < 2; half++) {
    typename C::Acc start{};
    if constexpr (std::is_same_v<C, Int8>) start = load_raw<v16i>(e.offset + column + 16 * half);
    for (int r = 0; r < Rows; r++) acc[r][half] = start;
  }
  multiply<C, Rows>(a + row * a_stride, a_stride, panel, groups, acc);
  for (int half = 0; half < 2; half++) {
    int64_t at = column + 16 * half;
    if (at >= columns) return;
    v16f bias = e.bias ? load16(e.bias + at) : v16f{};
    for (int r = 0; r < Rows; r++) {
      v16f y;
      if constexpr (std::is_same_v<C, Int8>)
        y = to_float(acc[r][half]) * e.row_scale[row + r] *
            load16(e.column_scale + at);
      else
        y = acc[r][half];
      Out* to = out + (row + r) * out_stride;
      if (e.keep) y += load_at(to, at, columns) * e.keep[row + r];
      store_at(to, at, columns, y + bias);
    }
  }
}

template <class C, class Out, int Rows = kMaxRows>
DSTUNE_INLINE void tile_of(int64_t rows, const uint32_t* a, int64_t a_stride,
                           const uint32_t* panel, int64_t groups, int64_t row, int64_t column,
                           int64_t columns, const Epilogue& e, Out* out, int64_t out_stride) {
  if (rows == Rows)
    tile<C, Rows>(a, a_stride, panel, groups, row, column, columns, e, out, out_stride);
  else if constexpr (Rows > 1)
    tile_of<C, Out, Rows - 1>(rows, a, a_stride, panel, groups, row, column, columns, e, out,
                              out_stride);
}

// Multiplies rows row_begin .. row_end by one panel, in tiles of nearly equal height. Panels are
// panel_groups apart, of which the first `groups` count.
template <class C, class Out>
void multiply_panel(const uint32_t* a, int64_t a_stride, const uint32_t* weights, int64_t groups,
                    int64_t panel_groups, int64_t panel, int64_t row_begin, int64_t row_end,
                    int64_t columns, const Epilogue& e, Out* out, int64_t out_stride) {
  int64_t rows = row_end - row_begin, tiles = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t t = 0; t < tiles; t++) {
    int64_t first = row_begin + rows * t / tiles, last = row_begin + rows * (t + 1) / tiles;
    tile_of<C, Out>(last - first, a, a_stride, weights + panel * panel_groups * kPanel, groups,
                    first, panel * kPanel, columns, e, out, out_stride);
  }
}

// Converts one activation row to groups, zero-padded; int8 also yields the row's scale.
template <class C, class In>
DSTUNE_INLINE void pack_row(const In* x, int64_t k, uint32_t* out, int64_t groups, float* scale) {
  if constexpr (std::is_same_v<C, Int8>) {
    uint8_t* row = (uint8_t*)out;
    v16f amax{};
    for (int64_t i = 0; i < k; i += 16) amax = vmax(amax, vabs(load_at(x, i, k)));
    *scale = fmaxf(hmax(amax) / 127.f, 1e-12f);
    float inverse = 1.f / *scale;
    for (int64_t i = 0; i < k; i += 16) {
      v16f q = vmin(vmax(load_at(x, i, k) * inverse, splat(-127.f)), splat(127.f));
      v16c shifted = low_bytes(to_int(round_even(q)) ^ 128);  // + 128 modulo 256
      if (i + 16 <= k) store_raw(row + i, shifted);
      else memcpy(row + i, &shifted, k - i);
    }
    for (int64_t i = k; i < groups * 4; i++) row[i] = 128;
  } else if constexpr (std::is_same_v<C, Bf16>) {
    bf16* row = (bf16*)out;
    if (k % 2) row[k] = bf16{0};
    for (int64_t i = 0; i < k; i += 16) store_at(row, i, k, load_at(x, i, k));
  } else {
    for (int64_t i = 0; i < k; i += 16) store_at((float*)out, i, k, load_at(x, i, k));
  }
}

}  // namespace dstune
