// Attention for few query rows: keys and values are read once, where they lie, in their dtype.
#pragma once
#include <algorithm>

#include "attention/problem.h"
#include "softmax.h"

namespace dstune {

constexpr int64_t kNarrowChunk = 64;  // keys scored before their values are read

struct NarrowSpace {
  int64_t q_width, v_width, rope_at;
  float *q, *scores, *acc, *rope;
  uint32_t *q_pairs, *weight_pairs;
  Running* state;

  // For `rows` query rows of each of `heads` kv heads.
  NarrowSpace(Arena& arena, const Problem& p, int64_t rows, int64_t heads) {
    rope_at = (p.dk + 31) / 32 * 32;
    q_width = rope_at + (p.dr + 15) / 16 * 16;
    v_width = (p.dv + 15) / 16 * 16;
    q = arena.take<float>(heads * rows * q_width);
    q_pairs = arena.take<uint32_t>(heads * rows * q_width / 2);
    scores = arena.take<float>(rows * kNarrowChunk);
    weight_pairs = arena.take<uint32_t>(rows * kNarrowChunk / 2);
    acc = arena.take<float>(heads * rows * v_width);
    rope = arena.take<float>(kNarrowChunk * p.dr);
    state = arena.take<Running>(heads * rows);
  }
};

// How a vector of one key meets a vector of the query: in fp32, or bf16 pairs as they are.
template <class T>
struct FloatDot {
  typedef T Key;
  typedef float Query;
  static constexpr int64_t kWidth = 16;
  static DSTUNE_INLINE v16f query(const float* q, int64_t i) { return load16(q + i); }
  static DSTUNE_INLINE v16f key(const T* k, int64_t i) { return load16(k + i); }
  static DSTUNE_INLINE v16f part(const T* k, int64_t i, int64_t n) { return load_part(k + i, n); }
  static DSTUNE_INLINE v16f add(v16f acc, v16f a, v16f b) { return acc + a * b; }
};
struct PairDot {
  typedef bf16 Key;
  typedef uint32_t Query;
  static constexpr int64_t kWidth = 32;
  static DSTUNE_INLINE v16u query(const uint32_t* q, int64_t i) {
    return load_raw<v16u>(q + i / 2);
  }
  static DSTUNE_INLINE v16u key(const bf16* k, int64_t i) { return load_raw<v16u>(k + i); }
  static DSTUNE_INLINE v16u part(const bf16* k, int64_t i, int64_t n) {
    v16u words{};
    memcpy(&words, k + i, n * 2);
    return words;
  }
  static DSTUNE_INLINE v16f add(v16f acc, v16u a, v16u b) { return add_pairs(acc, a, b); }
};

// Scores of Rows queries against Keys keys: up to sixteen dot products, summed together.
template <class Dot, int Rows, int Keys>
DSTUNE_INLINE void dot_tile(const typename Dot::Query* const* q,
                            const typename Dot::Key* const* keys, int64_t offset, int64_t dim,
                            float* const* scores, bool add) {
  v16f acc[16] = {};
  const typename Dot::Key* k[Keys];
#pragma GCC unroll 16
  for (int t = 0; t < Keys; t++) k[t] = keys[t] + offset;
  int64_t i = 0;
  for (; i + Dot::kWidth <= dim; i += Dot::kWidth) {
    decltype(Dot::query(q[0], i)) query[Rows];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) query[r] = Dot::query(q[r], i);
#pragma GCC unroll 16
    for (int t = 0; t < Keys; t++) {
      auto key = Dot::key(k[t], i);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; r++) acc[r * Keys + t] = Dot::add(acc[r * Keys + t], query[r], key);
    }
  }
  if (i < dim) {
#pragma GCC unroll 16
    for (int t = 0; t < Keys; t++) {
      auto key = Dot::part(k[t], i, dim - i);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; r++)
        acc[r * Keys + t] = Dot::add(acc[r * Keys + t], Dot::query(q[r], i), key);
    }
  }
  float flat[16];
  store16(flat, sums(acc));
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++)
#pragma GCC unroll 16
    for (int t = 0; t < Keys; t++) scores[r][t] = flat[r * Keys + t] + (add ? scores[r][t] : 0.f);
}

template <class Dot, int Rows>
void dot_rows(const typename Dot::Query* q, int64_t q_stride, const typename Dot::Key* const* k,
              int64_t offset, int64_t keys, int64_t dim, float* scores, bool add) {
  constexpr int Keys = 16 / Rows;
  const typename Dot::Query* query[Rows];
  float* to[Rows];
  for (int r = 0; r < Rows; r++) query[r] = q + r * q_stride, to[r] = scores + r * kNarrowChunk;
  int64_t t = 0;
  for (; t + Keys <= keys; t += Keys) {
    dot_tile<Dot, Rows, Keys>(query, k + t, offset, dim, to, add);
    for (int r = 0; r < Rows; r++) to[r] += Keys;
  }
  for (; t < keys; t++) {
    dot_tile<Dot, Rows, 1>(query, k + t, offset, dim, to, add);
    for (int r = 0; r < Rows; r++) to[r]++;
  }
}

// scores [rows, kNarrowChunk] (+)= q [rows, dim] k^T.
template <class Dot>
void dot(const typename Dot::Query* q, int64_t q_stride, int64_t rows,
         const typename Dot::Key* const* k, int64_t offset, int64_t keys, int64_t dim,
         float* scores, bool add) {
  for (int64_t r = 0; r < rows; r += 4) {
    int64_t left = rows - r;
    auto f = left == 1   ? dot_rows<Dot, 1>
             : left == 2 ? dot_rows<Dot, 2>
             : left == 3 ? dot_rows<Dot, 3>
                         : dot_rows<Dot, 4>;
    f(q + r * q_stride, q_stride, k, offset, keys, dim, scores + r * kNarrowChunk, add);
  }
}

// acc [Rows, Vectors * 16] = acc * shrink + weights [Rows, keys] v, from dimension d on.
template <int Rows, int Vectors, class T>
DSTUNE_INLINE void weigh_tile(const float* weights, const uint32_t* pairs, const T* const* v,
                              int64_t offset, int64_t keys, int64_t d, int64_t dim, float* acc,
                              int64_t acc_width, const Running* state) {
  v16f total[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++)
      total[r][j] = load16(acc + r * acc_width + d + 16 * j) * state[r].shrink;
  if constexpr (std::is_same_v<T, bf16> && Vectors % 2 == 0) {
    if (pairs) {
      for (int64_t t = 0; t < keys; t += 2) {  // the weight of a missing partner is zero
        const bf16 *even_row = v[t] + offset + d, *odd_row = v[t + 1] + offset + d;
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; j += 2) {
          v32h even = load_raw<v32h>(even_row + 16 * j), odd = load_raw<v32h>(odd_row + 16 * j);
          v16u low = (v16u)interleave_low(even, odd), high = (v16u)interleave_high(even, odd);
#pragma GCC unroll 4
          for (int r = 0; r < Rows; r++) {
            v16u weight = v16u{} + pairs[r * kNarrowChunk / 2 + t / 2];
            total[r][j] = add_pairs(total[r][j], weight, low);
            total[r][j + 1] = add_pairs(total[r][j + 1], weight, high);
          }
        }
      }
      keys = 0;
    }
  }
  for (int64_t t = 0; t < keys; t++) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++) {
      const T* row = v[t] + offset;
      v16f value = Vectors > 1 ? load16(row + d + 16 * j) : load_at(row, d, dim);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; r++) total[r][j] += value * weights[r * kNarrowChunk + t];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; j++) store16(acc + r * acc_width + d + 16 * j, total[r][j]);
}

template <int Rows, class T>
void weigh_rows(const float* weights, const uint32_t* pairs, const T* const* v, int64_t offset,
                int64_t keys, int64_t dim, float* acc, int64_t acc_width, const Running* state) {
  int64_t d = 0;
  for (; d + 64 <= dim; d += 64)
    weigh_tile<Rows, 4>(weights, pairs, v, offset, keys, d, dim, acc, acc_width, state);
  for (; d + 32 <= dim; d += 32)
    weigh_tile<Rows, 2>(weights, pairs, v, offset, keys, d, dim, acc, acc_width, state);
  for (; d < dim; d += 16)
    weigh_tile<Rows, 1>(weights, pairs, v, offset, keys, d, dim, acc, acc_width, state);
}

template <class T>
void weigh(const float* weights, const uint32_t* pairs, const T* const* v, int64_t offset,
           int64_t keys, int64_t rows, int64_t dim, float* acc, int64_t acc_width,
           const Running* state) {
  for (int64_t r = 0; r < rows; r += 4) {
    int64_t left = rows - r;
    auto f = left == 1   ? weigh_rows<1, T>
             : left == 2 ? weigh_rows<2, T>
             : left == 3 ? weigh_rows<3, T>
                         : weigh_rows<4, T>;
    f(weights + r * kNarrowChunk, pairs ? pairs + r * kNarrowChunk / 2 : nullptr, v, offset, keys,
      dim, acc + r * acc_width, acc_width, state + r);
  }
}

// Writes a unit's rows: final ones divided by their sums, or partial ones for `merge`.
template <class T>
void finish(const Problem& p, const Unit& u, int64_t head, int64_t rows, const float* acc,
            int64_t acc_width, const Running* state, float* partials) {
  for (int64_t row = 0; row < rows; row++) {
    const float* from = acc + row * acc_width;
    if (u.partial_row < 0) {
      T* to = p.finish_row<T>(u.token, head, row, state[row].max, state[row].sum);
      float sum = divisor(state[row].sum);
      for (int64_t d = 0; d < p.dv; d += 16)
        store_at(to, d, p.dv, load_at(from, d, p.dv) / sum);
    } else {
      int64_t at = u.partial_row + (head - u.head_begin) * rows + row;
      float* to = partials + at * p.partial_width();
      memcpy(to, from, p.dv * 4);
      to[p.dv] = state[row].max, to[p.dv + 1] = state[row].sum;
    }
  }
}

// A chunk of keys and values where they lie in the cache, for the first kv head.
template <class Cache>
struct Chunk {
  const Cache *k[kNarrowChunk], *v[kNarrowChunk + 1];
  int64_t slots[kNarrowChunk], keys;

  // Finds the chunk and asks for it ahead of its turn: blocks lie anywhere, and the hardware's
  // prefetcher starts anew at each.
  void find(const Problem& p, const Unit& u, int64_t begin) {
    keys = std::min(u.key_end - begin, kNarrowChunk);
    if (keys <= 0) return;
    p.find_slots(u.seq, begin, keys, slots);
    int64_t k_first = u.head_begin * p.k_head, k_last = (u.head_end - 1) * p.k_head + p.dk;
    int64_t v_first = u.head_begin * p.v_head, v_last = (u.head_end - 1) * p.v_head + p.dv;
    for (int64_t t = 0; t < keys; t++) {
      k[t] = (const Cache*)p.k + slots[t] * p.k_token;
      v[t] = (const Cache*)p.v + slots[t] * p.v_token;
      for (int64_t i = k_first; i < k_last; i += 64 / sizeof(Cache)) __builtin_prefetch(k[t] + i);
      for (int64_t i = v_first; i < v_last; i += 64 / sizeof(Cache)) __builtin_prefetch(v[t] + i);
    }
    v[keys] = v[keys - 1];
  }
};

template <class T, class Cache>
struct Narrow {
  // bf16 queries and keys multiply as they are; weights are rounded to bf16 for bf16 values.
  static constexpr bool kPairs = std::is_same_v<T, bf16> && std::is_same_v<Cache, bf16>;
  const Problem& p;
  const Unit& u;
  NarrowSpace s;
  int64_t group = p.heads / p.kv_heads, rows = u.count * group;
  bool is_paired = kPairs && p.dk % 2 == 0;

  void load_queries(int64_t head) {
    int64_t first = (head - u.head_begin) * rows;
    for (int64_t row = 0; row < rows; row++) {
      float* to = s.q + (first + row) * s.q_width;
      p.load_query<T>(u.token, head, row, 1.f, to, s.rope_at, s.q_width);
      bf16* pairs = (bf16*)(s.q_pairs + (first + row) * s.q_width / 2);
      for (int64_t i = 0; is_paired && i < s.rope_at; i += 16) store16(pairs + i, load16(to + i));
      s.state[first + row] = {-INFINITY, 0.f, 1.f};
    }
  }

  void score(const Chunk<Cache>& chunk, int64_t head, const float* const* rope) {
    int64_t first = (head - u.head_begin) * rows, offset = head * p.k_head;
    const float* q = s.q + first * s.q_width;
    bool done = false;
    if constexpr (kPairs) {
      if (is_paired)
        dot<PairDot>(s.q_pairs + first * s.q_width / 2, s.q_width / 2, rows, chunk.k, offset,
                     chunk.keys, p.dk, s.scores, false);
      done = is_paired;
    }
    if (!done)
      dot<FloatDot<Cache>>(q, s.q_width, rows, chunk.k, offset, chunk.keys, p.dk, s.scores, false);
    for (int64_t row = 0; p.k_scale && row < rows; row++)
      for (int64_t t = 0; t < chunk.keys; t++)
        s.scores[row * kNarrowChunk + t] *= p.k_scale[chunk.slots[t] * p.kv_heads + head];
    if (p.dr)
      dot<FloatDot<float>>(q + s.rope_at, s.q_width, rows, rope, 0, chunk.keys, p.dr, s.scores,
                           true);
  }

  void weigh_values(const Chunk<Cache>& chunk, int64_t head, int64_t begin) {
    int64_t first = (head - u.head_begin) * rows, padded = (chunk.keys + 15) / 16 * 16;
    for (int64_t row = 0; row < rows; row++) {
      int64_t visible = u.first_visible + row / group - begin;
      float* scores = s.scores + row * kNarrowChunk;
      softmax_chunk(scores, std::clamp<int64_t>(visible, 0, chunk.keys), padded, p.scale,
                    s.state[first + row]);
      for (int64_t t = 0; p.v_scale && t < chunk.keys; t++)
        scores[t] *= p.v_scale[chunk.slots[t] * p.kv_heads + head];
      bf16* pairs = (bf16*)(s.weight_pairs + row * kNarrowChunk / 2);
      for (int64_t t = 0; kPairs && t < padded; t += 16) store16(pairs + t, load16(scores + t));
    }
    weigh(s.scores, kPairs ? s.weight_pairs : nullptr, chunk.v, head * p.v_head, chunk.keys, rows,
          p.dv, s.acc + first * s.v_width, s.v_width, s.state + first);
  }

  void run(float* partials) {
    Chunk<Cache> chunks[2];
    chunks[0].find(p, u, u.key_begin);
    for (int64_t head = u.head_begin; head < u.head_end; head++) load_queries(head);
    memset(s.acc, 0, (u.head_end - u.head_begin) * rows * s.v_width * 4);
    const float* rope[kNarrowChunk];
    int turn = 0;
    for (int64_t begin = u.key_begin; begin < u.key_end; begin += kNarrowChunk, turn ^= 1) {
      const Chunk<Cache>& chunk = chunks[turn];
      chunks[turn ^ 1].find(p, u, begin + kNarrowChunk);
      for (int64_t t = 0; p.dr && t < chunk.keys; t++) {
        p.load_rope(chunk.slots[t], s.rope + t * p.dr);
        rope[t] = s.rope + t * p.dr;
      }
      for (int64_t head = u.head_begin; head < u.head_end; head++) {
        score(chunk, head, rope);
        weigh_values(chunk, head, begin);
      }
    }
    for (int64_t head = u.head_begin; head < u.head_end; head++) {
      int64_t first = (head - u.head_begin) * rows;
      finish<T>(p, u, head, rows, s.acc + first * s.v_width, s.v_width, s.state + first, partials);
    }
  }
};

}  // namespace dstune
