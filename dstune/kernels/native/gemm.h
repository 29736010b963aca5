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
// 64 int8 values share an activation scale; GROUP in linear/reference.py says the same.
constexpr int64_t kScaleGroups = 16;
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

// Weights are stored as value + 128 in uint8, because VNNI multiplies uint8 by int8; the
// accumulators start at -128 times the sum of the activations to make up for it. Sums are exact.
struct Int8 {
  static constexpr int64_t kGroup = 4;
  typedef v16i Acc;
  static DSTUNE_INLINE Acc step(Acc acc, uint32_t a, v16u w) {
#if defined(__AVX512VNNI__)
    return (v16i)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(a));
#else
    for (int i = 0; i < 4; i++)
      acc += (v16i)(w >> (8 * i) & 255u) * ((int32_t)(a << (24 - 8 * i)) >> 24);
    return acc;
#endif
  }
};

// Multiplies `Rows` activation rows by one panel. a_stride counts groups. `ahead` is the panel that
// will be needed next, if it is worth fetching meanwhile.
template <class C, int Rows>
DSTUNE_INLINE void multiply(const uint32_t* a, int64_t a_stride, const uint32_t* w,
                            int64_t groups, const uint32_t* ahead,
                            typename C::Acc (&acc)[Rows][2]) {
  // Four base pointers reach twelve rows through scaled addressing, which saves registers.
  const uint32_t* base[(Rows + 2) / 3];
  for (int i = 0; i < (Rows + 2) / 3; i++) base[i] = a + 3 * i * a_stride;
#pragma GCC unroll 2
  for (int64_t g = 0; g < groups; g++) {
    if (ahead) {
      __builtin_prefetch(ahead + g * kPanel, 0, 2);
      __builtin_prefetch(ahead + g * kPanel + 16, 0, 2);
    }
    v16u w0 = load_raw<v16u>(w + g * kPanel), w1 = load_raw<v16u>(w + g * kPanel + 16);
#pragma GCC unroll 12
    for (int row = 0; row < Rows; row++) {
      uint32_t x = base[row / 3][g + (row % 3) * a_stride];
      acc[row][0] = C::step(acc[row][0], x, w0);
      acc[row][1] = C::step(acc[row][1], x, w1);
    }
  }
}

// An int8 row's activations by chunks of kScaleGroups: each has a scale of its own, so that one
// outlier does not cost the whole row its resolution.
struct RowChunk {
  float scale;
  int32_t start;  // where the chunk's accumulators start
};

DSTUNE_INLINE int64_t chunks_of(int64_t groups) {
  return (groups + kScaleGroups - 1) / kScaleGroups;
}

// What happens to a finished tile: y = acc * column_scale + bias (scales: int8 only).
struct Epilogue {
  const RowChunk* rows;       // [M, chunks] or null
  const float* column_scale;  // [N padded to 32] or null
  const float* bias;          // [N padded to 32] or null
  const float* keep;          // [M] or null: y += keep * what stood there
};

// The products of `Rows` rows with one panel, as floats.
template <class C, int Rows>
DSTUNE_INLINE void products(const uint32_t* a, int64_t a_stride, const uint32_t* panel,
                            int64_t groups, const uint32_t* ahead, const RowChunk* rows,
                            v16f (&y)[Rows][2]) {
  typename C::Acc acc[Rows][2];
  if constexpr (std::is_same_v<C, Int8>) {
    int64_t chunks = chunks_of(groups);
    for (int r = 0; r < Rows; r++) y[r][0] = y[r][1] = v16f{};
    for (int64_t c = 0; c < chunks; c++) {
      int64_t first = c * kScaleGroups;
      int64_t count = groups - first < kScaleGroups ? groups - first : kScaleGroups;
      for (int r = 0; r < Rows; r++) acc[r][0] = acc[r][1] = v16i{} + rows[r * chunks + c].start;
      multiply<C, Rows>(a + first, a_stride, panel + first * kPanel, count,
                        ahead ? ahead + first * kPanel : nullptr, acc);
      for (int r = 0; r < Rows; r++) {
        y[r][0] += to_float(acc[r][0]) * rows[r * chunks + c].scale;
        y[r][1] += to_float(acc[r][1]) * rows[r * chunks + c].scale;
      }
    }
  } else {
    for (int r = 0; r < Rows; r++) acc[r][0] = acc[r][1] = v16f{};
    multiply<C, Rows>(a, a_stride, panel, groups, ahead, acc);
    for (int r = 0; r < Rows; r++) y[r][0] = acc[r][0], y[r][1] = acc[r][1];
  }
}

template <class C, int Rows, class Out>
void tile(const uint32_t* a, int64_t a_stride, const uint32_t* panel, const uint32_t* ahead,
          int64_t groups, int64_t row, int64_t column, int64_t columns, const Epilogue& e, Out* out,
          int64_t out_stride) {
  v16f sum[Rows][2];
  products<C, Rows>(a + row * a_stride, a_stride, panel, groups, ahead,
                    e.rows ? e.rows + row * chunks_of(groups) : nullptr, sum);
  for (int half = 0; half < 2; half++) {
    int64_t at = column + 16 * half;
    if (at >= columns) return;
    v16f bias = e.bias ? load16(e.bias + at) : v16f{};
    for (int r = 0; r < Rows; r++) {
      v16f y = sum[r][half];
      if constexpr (std::is_same_v<C, Int8>) y *= load16(e.column_scale + at);
      Out* to = out + (row + r) * out_stride;
      if (e.keep) y += load_at(to, at, columns) * e.keep[row + r];
      store_at(to, at, columns, y + bias);
    }
  }
}

template <class C, class Out, int Rows = kMaxRows>
DSTUNE_INLINE void tile_of(int64_t rows, const uint32_t* a, int64_t a_stride,
                           const uint32_t* panel, const uint32_t* ahead, int64_t groups,
                           int64_t row, int64_t column, int64_t columns, const Epilogue& e,
                           Out* out, int64_t out_stride) {
  if (rows == Rows)
    tile<C, Rows>(a, a_stride, panel, ahead, groups, row, column, columns, e, out, out_stride);
  else if constexpr (Rows > 1)
    tile_of<C, Out, Rows - 1>(rows, a, a_stride, panel, ahead, groups, row, column, columns, e,
                              out, out_stride);
}

// Multiplies rows row_begin .. row_end by one panel, in tiles of nearly equal height. Panels are
// panel_groups apart, of which the first `groups` count.
template <class C, class Out>
void multiply_panel(const uint32_t* a, int64_t a_stride, const uint32_t* weights, int64_t groups,
                    int64_t panel_groups, int64_t panel, int64_t row_begin, int64_t row_end,
                    int64_t columns, const Epilogue& e, Out* out, int64_t out_stride,
                    const uint32_t* ahead = nullptr) {
  int64_t rows = row_end - row_begin, tiles = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t t = 0; t < tiles; t++) {
    int64_t first = row_begin + rows * t / tiles, last = row_begin + rows * (t + 1) / tiles;
    tile_of<C, Out>(last - first, a, a_stride, weights + panel * panel_groups * kPanel,
                    t > 0 && t + 1 == tiles ? ahead : nullptr, groups, first, panel * kPanel,
                    columns, e, out, out_stride);
  }
}

// Converts one activation row to groups, zero-padded; int8 also yields the scale of each chunk.
template <class C, class In>
DSTUNE_INLINE void pack_row(const In* x, int64_t k, uint32_t* out, int64_t groups,
                            RowChunk* chunk) {
  if constexpr (std::is_same_v<C, Int8>) {
    constexpr int64_t kChunk = kScaleGroups * 4;
    int8_t* row = (int8_t*)out;
    for (int64_t first = 0; first < k; first += kChunk, chunk++) {
      int64_t end = first + kChunk < k ? first + kChunk : k;
      v16f amax{};
      for (int64_t i = first; i < end; i += 16) amax = vmax(amax, vabs(load_at(x, i, end)));
      chunk->scale = fmaxf(hmax(amax) / 127.f, 1e-12f);
      float inverse = 1.f / chunk->scale;
      v16f total{};  // exact: at most 64 values of at most 127
      for (int64_t i = first; i < end; i += 16) {
        v16f q = round_even(
            vmin(vmax(load_at(x, i, end) * inverse, splat(-127.f)), splat(127.f)));
        total += q;
        v16c narrow = low_bytes(to_int(q));
        if (i + 16 <= end) store_raw(row + i, narrow);
        else memcpy(row + i, &narrow, end - i);
      }
      chunk->start = -128 * (int32_t)hsum(total);
    }
    for (int64_t i = k; i < groups * 4; i++) row[i] = 0;
  } else if constexpr (std::is_same_v<C, Bf16>) {
    bf16* row = (bf16*)out;
    if (k % 2) row[k] = bf16{0};
    for (int64_t i = 0; i < k; i += 16) store_at(row, i, k, load_at(x, i, k));
  } else {
    for (int64_t i = 0; i < k; i += 16) store_at((float*)out, i, k, load_at(x, i, k));
  }
}

}  // namespace dstune
