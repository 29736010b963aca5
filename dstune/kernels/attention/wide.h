// Attention for many query rows: a chunk of keys and values is repacked into the panels of
// `gemm.h`, and both products run on the matrix-multiply kernel.
#pragma once
#include "attention/narrow.h"
#include "gemm.h"

namespace dstune {

constexpr int64_t kWideChunk = 128;  // keys repacked and scored before their values are read

template <class C>
struct WideSpace {
  int64_t groups, v_panels, v_groups, width;
  uint32_t *q, *rows, *k, *v, *weights;
  float *scores, *acc, *shrink, *row;
  Running* state;

  WideSpace(Arena& arena, const Problem& p, int64_t num_rows) {
    width = p.dk + p.dr;
    groups = (width + C::kGroup - 1) / C::kGroup;
    v_panels = (p.dv + kPanel - 1) / kPanel;
    v_groups = kWideChunk / C::kGroup;
    q = arena.take<uint32_t>(num_rows * groups);
    rows = arena.take<uint32_t>(kWideChunk * groups);
    k = arena.take<uint32_t>(kWideChunk * groups);
    v = arena.take<uint32_t>(v_panels * v_groups * kPanel);
    weights = arena.take<uint32_t>(num_rows * v_groups);
    scores = arena.take<float>(num_rows * kWideChunk);
    acc = arena.take<float>(num_rows * p.dv);
    shrink = arena.take<float>(num_rows);
    row = arena.take<float>(width + 16);
    state = arena.take<Running>(num_rows);
  }
};

// Transposes sixteen rows of words into one half of a panel: word g of row i lands at [g][i].
DSTUNE_INLINE void transpose_rows(const uint32_t* const (&rows)[16], int64_t words, uint32_t* to) {
  for (int64_t g = 0; g < words; g += 16) {
    v16u square[16];
    int64_t left = words - g < 16 ? words - g : 16;
    if (left == 16) {
      for (int i = 0; i < 16; i++) square[i] = load_raw<v16u>(rows[i] + g);
    } else {
      for (int i = 0; i < 16; i++) square[i] = v16u{}, memcpy(&square[i], rows[i] + g, left * 4);
    }
    transpose(square);
    for (int i = 0; i < left; i++) store_raw(to + (g + i) * kPanel, square[i]);
  }
}

// Keys as panels: each panel holds 32 keys side by side.
template <class C, class Cache>
void pack_keys(const Problem& p, int64_t head, const int64_t* slots, int64_t keys,
               const WideSpace<C>& s) {
  // bf16 rows already are the words that the kernel multiplies; others are converted first.
  bool is_direct = std::is_same_v<C, Bf16> && std::is_same_v<Cache, bf16> && p.dk % 2 == 0 &&
                   (!p.dr || (p.rope_dtype == kBF16 && p.dr % 2 == 0));
  auto key = [&](int64_t t) {
    return (const Cache*)p.k + slots[t] * p.k_token + head * p.k_head;
  };
  for (int64_t t = 0; t < keys && !is_direct; t++) {
    float scale = p.k_scale ? p.k_scale[slots[t] * p.kv_heads + head] : 1.f;
    for (int64_t i = 0; i < p.dk; i += 16)
      store_at(s.row, i, p.dk, load_at(key(t), i, p.dk) * scale);
    if (p.dr) p.load_rope(slots[t], s.row + p.dk);
    pack_row<C>((const float*)s.row, s.width, s.rows + t * s.groups, s.groups, nullptr);
  }
  for (int64_t t = 0; t < keys; t += 16) {
    const uint32_t *rows[16], *rope_rows[16];
    for (int i = 0; i < 16; i++) {
      int64_t at = t + i < keys ? t + i : keys - 1;  // the padding repeats the last key
      rows[i] = is_direct ? (const uint32_t*)key(at) : s.rows + at * s.groups;
      rope_rows[i] = (const uint32_t*)((const bf16*)p.rope + slots[at] * p.dr);
    }
    uint32_t* to = s.k + t / kPanel * kPanel * s.groups + t % kPanel;
    transpose_rows(rows, is_direct ? p.dk / 2 : s.groups, to);
    if (is_direct && p.dr) transpose_rows(rope_rows, p.dr / 2, to + p.dk / 2 * kPanel);
  }
}

// Values as panels: each panel holds 32 dimensions side by side, keys run along the groups.
template <class C, class Cache>
void pack_values(const Problem& p, int64_t head, const int64_t* slots, int64_t keys,
                 const WideSpace<C>& s) {
  auto row = [&](int64_t t) {
    return (const Cache*)p.v + slots[t] * p.v_token + head * p.v_head;
  };
  auto scale = [&](int64_t t) {
    return p.v_scale ? p.v_scale[slots[t] * p.kv_heads + head] : 1.f;
  };
  for (int64_t t = 0; t < keys; t += C::kGroup) {
    uint32_t* to = s.v + t / C::kGroup * kPanel;
    bool has_odd = t + 1 < keys;  // the partner of a last key is zero, its weight is too
    int64_t d = 0;
    if constexpr (std::is_same_v<C, Bf16> && std::is_same_v<Cache, bf16>) {
      for (; d + kPanel <= p.dv; d += kPanel) {
        v32h even = load_raw<v32h>(row(t) + d);
        v32h odd = has_odd ? load_raw<v32h>(row(t + 1) + d) : v32h{};
        uint32_t* at = to + d * s.v_groups;
        store_raw(at, interleave_low(even, odd));
        store_raw(at + 16, interleave_high(even, odd));
      }
    }
    for (; d < p.dv; d += 16) {
      uint32_t* at = to + d / kPanel * s.v_groups * kPanel + d % kPanel;
      v16f even = load_at(row(t), d, p.dv) * scale(t);
      if constexpr (C::kGroup == 2) {
        v16f odd = has_odd ? load_at(row(t + 1), d, p.dv) * scale(t + 1) : v16f{};
        store_raw(at, widen(narrow_bf16(even)) | widen(narrow_bf16(odd)) << 16);
      } else {
        store_raw(at, even);
      }
    }
  }
}

template <class C, class T, class Cache>
void wide(const Problem& p, const Unit& u, int64_t head, const WideSpace<C>& s, float* partials) {
  int64_t group = p.heads / p.kv_heads, rows = u.count * group;
  for (int64_t row = 0; row < rows; row++) {
    p.load_query<T>(u.token, head, row, 1.f, s.row, p.dk, s.width);
    pack_row<C>((const float*)s.row, s.width, s.q + row * s.groups, s.groups, nullptr);
    s.state[row] = {-INFINITY, 0.f, 1.f};
  }
  memset(s.acc, 0, rows * p.dv * 4);
  int64_t slots[kWideChunk];
  for (int64_t begin = u.key_begin; begin < u.key_end; begin += kWideChunk) {
    int64_t keys = u.key_end - begin < kWideChunk ? u.key_end - begin : kWideChunk;
    int64_t panels = (keys + kPanel - 1) / kPanel;
    p.find_slots(u.seq, begin, keys, slots);
    pack_keys<C, Cache>(p, head, slots, keys, s);
    for (int64_t panel = 0; panel < panels; panel++)
      multiply_panel<C>(s.q, s.groups, s.k, s.groups, s.groups, panel, 0, rows, panels * kPanel,
                        Epilogue{}, s.scores, kWideChunk);
    int64_t weight_groups = (keys + C::kGroup - 1) / C::kGroup;
    for (int64_t row = 0; row < rows; row++) {
      int64_t visible = u.first_visible + row / group - begin;
      float* scores = s.scores + row * kWideChunk;
      softmax_chunk(scores, visible < 0 ? 0 : visible < keys ? visible : keys, panels * kPanel,
                    p.scale, s.state[row]);
      s.shrink[row] = s.state[row].shrink;
      pack_row<C>((const float*)scores, weight_groups * C::kGroup, s.weights + row * s.v_groups,
                  weight_groups, nullptr);
    }
    pack_values<C, Cache>(p, head, slots, keys, s);
    Epilogue add{};
    add.keep = s.shrink;
    for (int64_t panel = 0; panel < s.v_panels; panel++)
      multiply_panel<C>(s.weights, s.v_groups, s.v, weight_groups, s.v_groups, panel, 0, rows,
                        p.dv, add, s.acc, p.dv);
  }
  finish<T>(p, u, head, rows, s.acc, p.dv, s.state, partials);
}

}  // namespace dstune
