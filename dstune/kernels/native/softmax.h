// Online softmax over chunks of keys, and the transposes that attention needs.
#pragma once
#include "vec.h"

namespace dstune {

// Lanes of a pair of vectors whose bit 1, 2, 4 or 8 is clear (low) or set (high); the second
// vector's land where that bit is set. Applied for all four bits this transposes sixteen vectors;
// with an addition it sums each of them.
template <int Bit>
DSTUNE_INLINE v16i low_lanes() {
  constexpr int B = Bit;
#define DSTUNE_LANE(i) (((i) & ~B) + ((i) & B ? 16 : 0))
  return v16i{DSTUNE_LANE(0),  DSTUNE_LANE(1),  DSTUNE_LANE(2),  DSTUNE_LANE(3),
              DSTUNE_LANE(4),  DSTUNE_LANE(5),  DSTUNE_LANE(6),  DSTUNE_LANE(7),
              DSTUNE_LANE(8),  DSTUNE_LANE(9),  DSTUNE_LANE(10), DSTUNE_LANE(11),
              DSTUNE_LANE(12), DSTUNE_LANE(13), DSTUNE_LANE(14), DSTUNE_LANE(15)};
#undef DSTUNE_LANE
}

template <int Bit>
DSTUNE_INLINE v16f pair_sum(v16f a, v16f b) {
  return __builtin_shuffle(a, b, low_lanes<Bit>()) +
         __builtin_shuffle(a, b, low_lanes<Bit>() + Bit);
}

// Returns the sixteen horizontal sums of sixteen vectors, in order.
DSTUNE_INLINE v16f sums(const v16f (&a)[16]) {
  v16f b[8], c[4], d[2];
  for (int i = 0; i < 8; i++) b[i] = pair_sum<1>(a[2 * i], a[2 * i + 1]);
  for (int i = 0; i < 4; i++) c[i] = pair_sum<2>(b[2 * i], b[2 * i + 1]);
  for (int i = 0; i < 2; i++) d[i] = pair_sum<4>(c[2 * i], c[2 * i + 1]);
  return pair_sum<8>(d[0], d[1]);
}

template <int Bit>
DSTUNE_INLINE void transpose_step(v16u (&a)[16]) {
  for (int i = 0; i < 16; i++) {
    if (i & Bit) continue;
    v16u low = __builtin_shuffle(a[i], a[i | Bit], low_lanes<Bit>());
    a[i | Bit] = __builtin_shuffle(a[i], a[i | Bit], low_lanes<Bit>() + Bit);
    a[i] = low;
  }
}

DSTUNE_INLINE void transpose(v16u (&a)[16]) {
  transpose_step<1>(a);
  transpose_step<2>(a);
  transpose_step<4>(a);
  transpose_step<8>(a);
}

// One query's running maximum and sum, and the factor that its older results shrink by.
struct Running {
  float max, sum, shrink;
};

// Turns scores[0 .. valid) into weights exp(score * scale - max) and zeroes them up to `padded`.
DSTUNE_INLINE void softmax_chunk(float* scores, int64_t valid, int64_t padded, float scale,
                                 Running& state) {
  state.shrink = 1.f;
  const v16f lowest = splat(-INFINITY);
  const v16i lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  v16f largest = lowest;
  for (int64_t i = 0; i < valid; i += 16)
    largest = vmax(largest, choose(lane + (int)i < (int)valid, load16(scores + i) * scale, lowest));
  float max = fmaxf(state.max, hmax(largest));
  v16f total{};
  if (valid > 0) {
    state.shrink = state.max == -INFINITY ? 0.f : expf(state.max - max);
    state.max = max;
    for (int64_t i = 0; i < valid; i += 16) {
      v16f weight = vexp(load16(scores + i) * scale - max);
      weight = choose(lane + (int)i < (int)valid, weight, v16f{});
      total += weight;
      store16(scores + i, weight);
    }
  }
  for (int64_t i = (valid + 15) / 16 * 16; i < padded; i += 16) store16(scores + i, v16f{});
  state.sum = state.sum * state.shrink + hsum(total);
}

}  // namespace dstune
