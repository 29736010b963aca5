// The routed experts of a step in one parallel region: group tokens by expert, multiply by the
// fused gate and up weights, apply SwiGLU, multiply by the down weights, combine per token.
#include <algorithm>
#include <atomic>
#include <vector>

#include "gemm.h"

using namespace dstune;

namespace {

// Per projection; below this, some 50 us, one thread works alone: see linear/cpu.cpp.
constexpr int64_t kSmallProducts = 512 * 1024;

struct Layer {
  const uint32_t *gate_up, *down;              // [experts] panels of [2F, D] and [D, F]
  const float *gate_up_scale, *down_scale;     // int8: [experts, columns padded to 32]
  int64_t experts, hidden, features;
};

struct Task {
  int64_t expert, panel;
};

int64_t panels_of(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

Epilogue scales(const RowChunk* rows, const float* column_scale, int64_t expert, int64_t panels) {
  if (!column_scale) return Epilogue{};
  return {rows, column_scale + expert * panels * kPanel, nullptr, nullptr};
}

template <class C, class T>
void run(const Layer& l, const void* x, int64_t x_stride, const float* weights,
         const int64_t* ids, void* out, int64_t tokens, int64_t top_k, int64_t threads) {
  int64_t pairs = tokens * top_k;
  // Pairs of (token, choice), sorted by expert: expert e owns rows start[e] .. start[e + 1].
  std::vector<int64_t> start(l.experts + 1), row_of(pairs), pair_of(pairs);
  for (int64_t i = 0; i < pairs; i++) start[ids[i] + 1]++;
  for (int64_t e = 0; e < l.experts; e++) start[e + 1] += start[e];
  std::vector<int64_t> fill(start.begin(), start.end() - 1);
  for (int64_t i = 0; i < pairs; i++) pair_of[row_of[i] = fill[ids[i]]++] = i;

  int64_t in_groups = (l.hidden + C::kGroup - 1) / C::kGroup;
  int64_t mid_groups = (l.features + C::kGroup - 1) / C::kGroup;
  int64_t up_panels = panels_of(2 * l.features), down_panels = panels_of(l.hidden);
  std::vector<Task> up_tasks, down_tasks;
  for (int64_t e = 0; e < l.experts; e++) {
    if (start[e] == start[e + 1]) continue;
    for (int64_t p = 0; p < up_panels; p++) up_tasks.push_back({e, p});
    for (int64_t p = 0; p < down_panels; p++) down_tasks.push_back({e, p});
  }

  // Down's results take the place of gate and up, which nobody needs by then.
  int64_t wide = std::max(2 * l.features, l.hidden), groups = std::max(in_groups, mid_groups);
  int64_t in_chunks = chunks_of(in_groups), mid_chunks = chunks_of(mid_groups);
  Scratch scratch(pairs * ((wide + groups) * 4 + chunks_of(groups) * sizeof(RowChunk)));
  float* y = (float*)scratch.data;
  uint32_t* packed = (uint32_t*)(y + pairs * wide);
  RowChunk* row_chunks = (RowChunk*)(packed + pairs * groups);

  auto pack_input = [&](int64_t row) {
    const T* from = (const T*)x + pair_of[row] / top_k * x_stride;
    pack_row<C>(from, l.hidden, packed + row * in_groups, in_groups,
                row_chunks + row * in_chunks);
  };
  auto activate = [&](int64_t row) {
    float *gate = y + row * wide, *up = gate + l.features;
    for (int64_t i = 0; i < l.features; i += 16) {
      v16f g = load_at(gate, i, l.features), u = load_at(up, i, l.features);
      store_at(gate, i, l.features, g / (1.f + vexp(-g)) * u);
    }
    pack_row<C>((const float*)gate, l.features, packed + row * mid_groups, mid_groups,
                row_chunks + row * mid_chunks);
  };
  auto combine = [&](int64_t token) {
    for (int64_t i = 0; i < l.hidden; i += 16) {
      v16f sum{};
      for (int64_t c = 0; c < top_k; c++)
        sum += load_at(y + row_of[token * top_k + c] * wide, i, l.hidden) *
               weights[token * top_k + c];
      store_at((T*)out + token * l.hidden, i, l.hidden, sum);
    }
  };
  auto multiply_up = [&](int64_t i) {
    const Task& t = up_tasks[i];
    multiply_panel<C>(packed, in_groups, l.gate_up + t.expert * up_panels * in_groups * kPanel,
                      in_groups, in_groups, t.panel, start[t.expert], start[t.expert + 1],
                      2 * l.features,
                      scales(row_chunks, l.gate_up_scale, t.expert, up_panels), y, wide);
  };
  auto multiply_down = [&](int64_t i) {
    const Task& t = down_tasks[i];
    multiply_panel<C>(packed, mid_groups, l.down + t.expert * down_panels * mid_groups * kPanel,
                      mid_groups, mid_groups, t.panel, start[t.expert], start[t.expert + 1],
                      l.hidden, scales(row_chunks, l.down_scale, t.expert, down_panels), y, wide);
  };
  std::atomic<int64_t> next[5] = {};
  auto each = [](std::atomic<int64_t>& counter, int64_t count, auto f) {
    for (int64_t i; (i = counter.fetch_add(1, std::memory_order_relaxed)) < count;) f(i);
  };
  if (threads <= 1 || pairs * l.hidden * l.features < kSmallProducts) {
    each(next[0], pairs, pack_input);
    each(next[1], up_tasks.size(), multiply_up);
    each(next[2], pairs, activate);
    each(next[3], down_tasks.size(), multiply_down);
    each(next[4], tokens, combine);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    each(next[0], pairs, pack_input);
#pragma omp barrier
    each(next[1], up_tasks.size(), multiply_up);
#pragma omp barrier
    each(next[2], pairs, activate);
#pragma omp barrier
    each(next[3], down_tasks.size(), multiply_down);
#pragma omp barrier
    each(next[4], tokens, combine);
  }
}

template <class T>
auto for_precision(int64_t precision) {
  return precision == kFp32 ? run<Fp32, T> : precision == kBf16 ? run<Bf16, T> : run<Int8, T>;
}

}  // namespace

// x [tokens, hidden], weights and ids [tokens, top_k] -> out [tokens, hidden].
DSTUNE_API(experts, (const void* x, int64_t x_stride, const float* weights, const int64_t* ids,
                     void* out, const uint32_t* gate_up, const float* gate_up_scale,
                     const uint32_t* down, const float* down_scale, int64_t tokens, int64_t top_k,
                     int64_t experts, int64_t hidden, int64_t features, int64_t precision,
                     int64_t dtype, int64_t threads)) {
  if (tokens == 0) return;
  Layer layer{gate_up, down, gate_up_scale, down_scale, experts, hidden, features};
  auto f = dtype == kF32 ? for_precision<float>(precision) : for_precision<bf16>(precision);
  f(layer, x, x_stride, weights, ids, out, tokens, top_k, threads);
}
