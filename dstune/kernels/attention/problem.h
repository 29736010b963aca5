// What attention works on: where queries, keys and values are, and one unit of work.
#pragma once
#include <cmath>

#include "api.h"
#include "vec.h"

namespace dstune {

struct Problem {
  const void *q, *q_rope, *k, *v, *rope;
  const float *k_scale, *v_scale;                            // [slots, kv_heads] or null
  int64_t q_token, q_head, q_rope_token, q_rope_head;        // strides in elements
  int64_t k_token, k_head, v_token, v_head;                  // a token is a slot when paged
  const int32_t *query_start, *kv_lens, *block_tables;       // no block tables: keys are dense
  int64_t max_blocks, block_size;
  void* out;
  float* lse;     // [tokens, heads] or null: log of each row's sum of exp(score), -inf for no key
  int64_t shift;  // keys that each query sees beyond its own place at its sequence's end
  int64_t tokens, seqs, heads, kv_heads, dk, dr, dv, rope_dtype, threads;
  float scale;

  // Writes the slots of keys begin .. begin + keys of a sequence, in 64 bits: caches are large.
  void find_slots(int64_t seq, int64_t begin, int64_t keys, int64_t* slots) const {
    if (!block_tables) {
      for (int64_t t = 0; t < keys; t++) slots[t] = begin + t;
      return;
    }
    const int32_t* block = block_tables + seq * max_blocks + begin / block_size;
    int64_t offset = begin % block_size;
    for (int64_t t = 0; t < keys; t++) {
      slots[t] = (int64_t)*block * block_size + offset;
      if (++offset == block_size) offset = 0, block++;
    }
  }
  // Row r of a unit is query r / group of its tile, head r % group of its kv head.
  // Returns where its result goes, and writes its lse.
  template <class T>
  T* finish_row(int64_t token, int64_t kv_head, int64_t row, float max, float sum) const {
    int64_t group = heads / kv_heads;
    int64_t index = (token + row / group) * heads + kv_head * group + row % group;
    if (lse) lse[index] = max + logf(sum);  // no key: -inf + -inf
    return (T*)out + index * dv;
  }
  // Copies a row's query, rotary part behind it, to fp32 and pads it with zeros to `padded`.
  template <class T>
  void load_query(int64_t token, int64_t kv_head, int64_t row, float factor, float* to,
                  int64_t rope_at, int64_t padded) const {
    int64_t group = heads / kv_heads, head = kv_head * group + row % group;
    token += row / group;
    const T* from = (const T*)q + token * q_token + head * q_head;
    memset(to, 0, padded * 4);
    for (int64_t i = 0; i < dk; i += 16) store_at(to, i, dk, load_at(from, i, dk) * factor);
    if (!dr) return;
    from = (const T*)q_rope + token * q_rope_token + head * q_rope_head;
    for (int64_t i = 0; i < dr; i += 16)
      store_at(to + rope_at, i, dr, load_at(from, i, dr) * factor);
  }
  void load_rope(int64_t at, float* to) const {
    if (rope_dtype == kF32) copy_row((const float*)rope + at * dr, to);
    else if (rope_dtype == kBF16) copy_row((const bf16*)rope + at * dr, to);
    else copy_row((const half*)rope + at * dr, to);
  }
  template <class T>
  void copy_row(const T* from, float* to) const {
    for (int64_t i = 0; i < dr; i += 16) store_at(to, i, dr, load_at(from, i, dr));
  }
  int64_t partial_width() const { return (dv + 2 + 15) / 16 * 16; }
};

struct Unit {
  int64_t seq, head_begin, head_end;   // kv heads
  int64_t token, count;                // the tile's first query in the flat batch, its queries
  int64_t first_visible;               // keys that the tile's first query sees; below 0: none
  int64_t key_begin, key_end;
  int64_t partial_row;  // where its partial results go, or -1 when it is the only one
};

// What a row's weighted values are divided by: a row that saw no key is all zeros.
inline float divisor(float sum) { return sum == 0.f ? 1.f : sum; }

// Hands out aligned pieces of a buffer; with a null base it only measures.
struct Arena {
  char* at;
  char* base = at;
  template <class T>
  T* take(int64_t count) {
    char* piece = at;
    at += (count * (int64_t)sizeof(T) + 63) / 64 * 64;
    return (T*)piece;
  }
  int64_t used() const { return at - base; }
};

}  // namespace dstune
