// Sixteen lanes of fp32 or int32 on GCC's vector extensions: AVX-512 where there is, and the same
// results in AVX2, SSE or NEON where there is not, because the compiler splits the vectors.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace dstune {

typedef float v16f __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16h __attribute__((vector_size(32)));
typedef uint16_t v32h __attribute__((vector_size(64)));
typedef int8_t v16c __attribute__((vector_size(16)));

#define DSTUNE_INLINE inline __attribute__((always_inline))

// Element types. bf16 and half are storage only; arithmetic is fp32.
struct bf16 { uint16_t bits; };
struct half { uint16_t bits; };

enum Dtype : int64_t { kF32 = 0, kBF16 = 1, kF16 = 2, kI8 = 3 };

template <class T>
DSTUNE_INLINE T load_raw(const void* p) {
  T value;
  memcpy(&value, p, sizeof(T));
  return value;
}
template <class T>
DSTUNE_INLINE void store_raw(void* p, T value) { memcpy(p, &value, sizeof(T)); }

DSTUNE_INLINE v16f splat(float x) { return v16f{} + x; }
DSTUNE_INLINE v16u bits(v16f x) { return (v16u)x; }
DSTUNE_INLINE v16f choose(v16i mask, v16f a, v16f b) {
#if defined(__AVX512DQ__)
  return (v16f)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)b, (__m512)a);
#endif
  return (v16f)(((v16u)mask & (v16u)a) | (~(v16u)mask & (v16u)b));
}
DSTUNE_INLINE v16f vmax(v16f a, v16f b) {
#if defined(__AVX512F__)
  return (v16f)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return choose(a > b, a, b);
#endif
}
DSTUNE_INLINE v16f vmin(v16f a, v16f b) {
#if defined(__AVX512F__)
  return (v16f)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return choose(a < b, a, b);
#endif
}
DSTUNE_INLINE v16f vabs(v16f x) { return (v16f)((v16u)x & 0x7fffffffu); }

DSTUNE_INLINE float hsum(v16f x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)x);
#else
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = x[i] + x[i + 8];
  for (int n = 4; n; n /= 2)
    for (int i = 0; i < n; i++) s[i] += s[i + n];
  return s[0];
#endif
}
DSTUNE_INLINE float hmax(v16f x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float m = x[0];
  for (int i = 1; i < 16; i++) m = x[i] > m ? x[i] : m;
  return m;
#endif
}

// Lane-by-lane conversions. GCC 12 splits the generic ones into single lanes.
DSTUNE_INLINE v16u widen(v16h x) {
#if defined(__AVX512F__)
  return (v16u)_mm512_cvtepu16_epi32((__m256i)x);
#else
  return __builtin_convertvector(x, v16u);
#endif
}
DSTUNE_INLINE v16i widen(v16c x) {
#if defined(__AVX512F__)
  return (v16i)_mm512_cvtepi8_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, v16i);
#endif
}
DSTUNE_INLINE v16c low_bytes(v16i x) {
#if defined(__AVX512F__)
  return (v16c)_mm512_cvtepi32_epi8((__m512i)x);
#else
  return __builtin_convertvector(x, v16c);
#endif
}
DSTUNE_INLINE v16f to_float(v16i x) {
#if defined(__AVX512F__)
  return (v16f)_mm512_cvtepi32_ps((__m512i)x);
#else
  return __builtin_convertvector(x, v16f);
#endif
}
DSTUNE_INLINE v16i to_int(v16f x) {  // of whole numbers
#if defined(__AVX512F__)
  return (v16i)_mm512_cvtps_epi32((__m512)x);
#else
  return __builtin_convertvector(x, v16i);
#endif
}

DSTUNE_INLINE v16f widen_bf16(v16h x) { return (v16f)(widen(x) << 16); }

DSTUNE_INLINE v16h narrow_bf16(v16f x) {
#if defined(__AVX512BF16__)
  return (v16h)_mm512_cvtneps_pbh((__m512)x);
#else
  v16u u = bits(x);
  v16u rounded = u + 0x7fffu + ((u >> 16) & 1u);
  v16u is_nan = (v16u)((u & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector(((is_nan & 0x7fc00000u) | (~is_nan & rounded)) >> 16, v16h);
#endif
}

// Pairs (a[i], b[i]) of the lower and the upper sixteen elements.
DSTUNE_INLINE v32h interleave_low(v32h a, v32h b) {
  const v32h index = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                      8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return __builtin_shuffle(a, b, index);
}
DSTUNE_INLINE v32h interleave_high(v32h a, v32h b) {
  const v32h index = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                      24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  return __builtin_shuffle(a, b, index);
}

// acc + a.low * b.low + a.high * b.high, lane by lane, for words that hold two bf16.
DSTUNE_INLINE v16f add_pairs(v16f acc, v16u a, v16u b) {
#if defined(__AVX512BF16__)
  return (v16f)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
  acc += (v16f)(a << 16) * (v16f)(b << 16);
  return acc + (v16f)(a & 0xffff0000u) * (v16f)(b & 0xffff0000u);
#endif
}

// load16 / store16: sixteen consecutive elements of any dtype, to and from fp32.
DSTUNE_INLINE v16f load16(const float* p) { return load_raw<v16f>(p); }
DSTUNE_INLINE v16f load16(const bf16* p) { return widen_bf16(load_raw<v16h>(p)); }
DSTUNE_INLINE v16f load16(const half* p) {
#if defined(__AVX512F__)
  return (v16f)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#else
  v16f x;
  for (int i = 0; i < 16; i++) x[i] = (float)load_raw<_Float16>(p + i);
  return x;
#endif
}
DSTUNE_INLINE v16f load16(const int8_t* p) {
  return to_float(widen(load_raw<v16c>(p)));
}
DSTUNE_INLINE void store16(float* p, v16f x) { store_raw(p, x); }
DSTUNE_INLINE void store16(bf16* p, v16f x) { store_raw(p, narrow_bf16(x)); }
DSTUNE_INLINE void store16(half* p, v16f x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < 16; i++) store_raw<_Float16>(p + i, (_Float16)x[i]);
#endif
}
// Rounds to the nearest even integer; the caller has clamped to -127 .. 127.
DSTUNE_INLINE v16f round_even(v16f x) {
  const v16f magic = splat(12582912.f);  // 1.5 * 2^23: adding it leaves no fraction bits
  return (x + magic) - magic;
}
DSTUNE_INLINE void store16(int8_t* p, v16f x) {
  store_raw(p, low_bytes(to_int(round_even(x))));
}

// The same for the first n < 16 elements; the lanes behind them read as zero.
template <class T>
DSTUNE_INLINE v16f load_part(const T* p, int64_t n) {
  T buffer[16];
  memset(buffer, 0, sizeof(buffer));
  memcpy(buffer, p, n * sizeof(T));
  return load16(buffer);
}
template <class T>
DSTUNE_INLINE void store_part(T* p, v16f x, int64_t n) {
  T buffer[16];
  store16(buffer, x);
  memcpy(p, buffer, n * sizeof(T));
}
// Elements i .. i + 15 of a row of n.
template <class T>
DSTUNE_INLINE v16f load_at(const T* row, int64_t i, int64_t n) {
  return i + 16 <= n ? load16(row + i) : load_part(row + i, n - i);
}
template <class T>
DSTUNE_INLINE void store_at(T* row, int64_t i, int64_t n, v16f x) {
  if (i + 16 <= n) store16(row + i, x);
  else store_part(row + i, x, n - i);
}

// exp and log after Cephes (Moshier), about 2 ulp. exp is 0 below -87 and log wants x > 0.
DSTUNE_INLINE v16f vexp(v16f x) {
  v16f clamped = vmin(vmax(x, splat(-87.f)), splat(88.f));
  v16f n = round_even(clamped * 1.44269504088896341f);
  v16f r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  v16f p = splat(1.9875691500E-4f);
  p = p * r + 1.3981999507E-3f;
  p = p * r + 8.3334519073E-3f;
  p = p * r + 4.1665795894E-2f;
  p = p * r + 1.6666665459E-1f;
  p = p * r + 5.0000001201E-1f;
  p = p * (r * r) + r + 1.f;
  v16i exponent = (to_int(n) + 127) << 23;
  return choose(x < splat(-87.f), v16f{}, p * (v16f)exponent);
}

DSTUNE_INLINE v16f vlog(v16f x) {
  v16i e = (v16i)(bits(x) >> 23) - 126;
  v16f m = (v16f)((bits(x) & 0x007fffffu) | 0x3f000000u);  // in [0.5, 1)
  v16i is_low = m < splat(0.707106781186547524f);
  e += is_low;  // true is -1
  m = choose(is_low, m + m, m) - 1.f;
  v16f f = to_float(e), z = m * m;
  v16f p = splat(7.0376836292E-2f);
  p = p * m + -1.1514610310E-1f;
  p = p * m + 1.1676998740E-1f;
  p = p * m + -1.2420140846E-1f;
  p = p * m + 1.4249322787E-1f;
  p = p * m + -1.6668057665E-1f;
  p = p * m + 2.0000714765E-1f;
  p = p * m + -2.4999993993E-1f;
  p = p * m + 3.3333331174E-1f;
  p = p * m * z + f * -2.12194440e-4f - 0.5f * z;
  return m + p + f * 0.693359375f;
}

}  // namespace dstune
