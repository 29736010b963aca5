// Causal attention over a paged cache or dense tensors, one call for a whole step.
//
// Work is cut into units: one sequence, kv heads, a tile of queries and a range of keys. Queries
// and keys are cut by the sequence's own lengths, so results do not depend on the batch.
// `narrow.h` serves few query rows (decode), `wide.h` many (prefill chunks, latent attention).
#include <algorithm>
#include <atomic>
#include <vector>

#include "attention/narrow.h"
#include "attention/problem.h"
#include "attention/wide.h"

using namespace dstune;

namespace {

constexpr int64_t kNarrowRows = 16;   // up to here the narrow kernel was measured faster
constexpr int64_t kSmallProducts = 512 * 1024;  // some 25 us on one thread; see linear
constexpr int64_t kTileRows = 96;    // query rows of a unit: its scores and weights stay in L2
constexpr int64_t kSplitKeys = 256;  // keys of a unit when one tile holds all queries

struct Merge {
  int64_t token, head, count, first_row, split_rows, splits;
};

struct Plan {
  std::vector<Unit> units;
  std::vector<Merge> merges;
  int64_t partial_rows = 0, max_rows = 0;
  int64_t products = 0;  // multiplications of queries with keys and weights with values
};

Plan plan(const Problem& p) {
  Plan result;
  int64_t group = p.heads / p.kv_heads, tile = std::max<int64_t>(1, kTileRows / group);
  // All kv heads of a token lie side by side: read them together unless threads would idle.
  int64_t together = p.seqs >= 2 * p.threads ? p.kv_heads : 1;
  for (int64_t seq = 0; seq < p.seqs; seq++) {
    int64_t start = p.query_start[seq], queries = p.query_start[seq + 1] - start;
    int64_t diagonal = p.kv_lens[seq] - queries + p.shift;  // query i sees keys 0 .. diagonal + i
    int64_t keys = std::clamp<int64_t>(diagonal + queries, 0, p.kv_lens[seq]);
    int64_t splits = queries <= tile ? (keys + kSplitKeys - 1) / kSplitKeys : 1;
    for (int64_t first = 0; first < queries; first += tile) {
      int64_t count = std::min(tile, queries - first), rows = count * group;
      int64_t visible = std::clamp<int64_t>(diagonal + first + count, 0, keys);
      int64_t heads = rows <= kNarrowRows ? together : 1;
      result.max_rows = std::max(result.max_rows, rows);
      result.products += rows * p.kv_heads * visible * (p.dk + p.dr + p.dv);
      for (int64_t head = 0; head < p.kv_heads; head += heads) {
        Unit unit{seq, head, head + heads, start + first, count, diagonal + first + 1,
                  0, visible, -1};
        if (splits <= 1) {
          result.units.push_back(unit);
          continue;
        }
        int64_t split_rows = heads * rows;
        for (int64_t h = 0; h < heads; h++)
          result.merges.push_back({unit.token, head + h, count, result.partial_rows + h * rows,
                                   split_rows, splits});
        for (int64_t split = 0; split < splits; split++, result.partial_rows += split_rows) {
          unit.key_begin = split * kSplitKeys;
          unit.key_end = std::min(visible, unit.key_begin + kSplitKeys);
          unit.partial_row = result.partial_rows;
          result.units.push_back(unit);
        }
      }
    }
  }
  return result;
}

// Joins the splits of one tile: each partial row is [dv sums, maximum, sum of weights].
template <class T>
void merge(const Problem& p, const Merge& m, const float* partials) {
  int64_t group = p.heads / p.kv_heads, width = p.partial_width(), rows = m.count * group;
  int64_t stride = m.split_rows * width;
  for (int64_t row = 0; row < rows; row++) {
    const float* first = partials + (m.first_row + row) * width;
    float max = -INFINITY, sum = 0.f;
    for (int64_t s = 0; s < m.splits; s++) max = fmaxf(max, first[s * stride + p.dv]);
    float base = max == -INFINITY ? 0.f : max;  // a row that no split has a key for
    for (int64_t s = 0; s < m.splits; s++) {
      const float* part = first + s * stride;
      sum += part[p.dv + 1] * expf(part[p.dv] - base);
    }
    T* out = p.finish_row<T>(m.token, m.head, row, max, sum);
    sum = divisor(sum);
    for (int64_t d = 0; d < p.dv; d += 16) {
      v16f total{};
      for (int64_t s = 0; s < m.splits; s++) {
        const float* part = first + s * stride;
        total += load_at(part, d, p.dv) * expf(part[p.dv] - base);
      }
      store_at(out, d, p.dv, total / sum);
    }
  }
}

template <class T, class Cache>
void run(const Problem& p) {
  typedef std::conditional_t<std::is_same_v<T, bf16>, Bf16, Fp32> Compute;
  Plan todo = plan(p);
  int64_t group = p.heads / p.kv_heads, num_units = todo.units.size();
  Arena measure{nullptr};
  NarrowSpace(measure, p, std::min(todo.max_rows, kNarrowRows), p.kv_heads);
  WideSpace<Compute>(measure, p, todo.max_rows);
  int64_t threads = std::max<int64_t>(1, p.threads), space = measure.used();
  int64_t partial_bytes = (todo.partial_rows * p.partial_width() * 4 + 63) / 64 * 64;
  Scratch scratch(partial_bytes + threads * space);
  float* partials = (float*)scratch.data;
  std::atomic<int64_t> next_unit{0}, next_merge{0};
  auto work = [&](int64_t thread) {
    for (int64_t i; (i = next_unit.fetch_add(1, std::memory_order_relaxed)) < num_units;) {
      const Unit& unit = todo.units[i];
      int64_t rows = unit.count * group;
      Arena arena{scratch.data + partial_bytes + thread * space};
      if (rows <= kNarrowRows) {
        NarrowSpace buffers(arena, p, rows, unit.head_end - unit.head_begin);
        Narrow<T, Cache>{p, unit, buffers}.run(partials);
      } else {
        WideSpace<Compute> buffers(arena, p, rows);
        wide<Compute, T, Cache>(p, unit, unit.head_begin, buffers, partials);
      }
    }
  };
  auto join = [&] {
    int64_t count = todo.merges.size();
    for (int64_t i; (i = next_merge.fetch_add(1, std::memory_order_relaxed)) < count;)
      merge<T>(p, todo.merges[i], partials);
  };
  if (threads == 1 || num_units <= 1 || todo.products < kSmallProducts) {
    work(0);
    join();
  } else {
#pragma omp parallel num_threads(threads)
    {
      work(omp_get_thread_num());
      if (!todo.merges.empty()) {
#pragma omp barrier
        join();
      }
    }
  }
  // Rows past the last sequence are padding.
  int64_t used = p.query_start[p.seqs], width = p.heads * p.dv;
  memset((T*)p.out + used * width, 0, (p.tokens - used) * width * sizeof(T));
}

template <class T>
void for_cache(const Problem& p, int64_t dtype) {
  auto f = dtype == kF32    ? run<T, float>
           : dtype == kBF16 ? run<T, bf16>
           : dtype == kF16  ? run<T, half>
                            : run<T, int8_t>;
  f(p);
}

void dispatch(const Problem& p, int64_t dtype, int64_t cache_dtype) {
  if (p.tokens == 0) return;
  if (dtype == kF32) for_cache<float>(p, cache_dtype);
  else for_cache<bf16>(p, cache_dtype);
}

}  // namespace

// q [tokens, heads, dim] -> out [tokens, heads, dim]; the cache is [slots, kv_heads, dim].
DSTUNE_API(paged_attention, (const void* q, int64_t q_token, int64_t q_head, const void* k,
                             const void* v, const float* k_scale, const float* v_scale,
                             const int32_t* query_start, const int32_t* kv_lens,
                             const int32_t* block_tables, int64_t max_blocks, int64_t block_size,
                             void* out, int64_t tokens, int64_t seqs, int64_t heads,
                             int64_t kv_heads, int64_t dim, float scale, int64_t dtype,
                             int64_t cache_dtype, int64_t threads)) {
  Problem p{};
  p.q = q, p.q_token = q_token, p.q_head = q_head;
  p.k = k, p.v = v, p.k_scale = k_scale, p.v_scale = v_scale;
  p.k_token = p.v_token = kv_heads * dim, p.k_head = p.v_head = dim;
  p.query_start = query_start, p.kv_lens = kv_lens, p.block_tables = block_tables;
  p.max_blocks = max_blocks, p.block_size = block_size;
  p.out = out, p.tokens = tokens, p.seqs = seqs, p.heads = heads, p.kv_heads = kv_heads;
  p.dk = p.dv = dim, p.scale = scale, p.threads = threads;
  dispatch(p, dtype, cache_dtype);
}

// q [tokens, heads, latent_dim], q_rope [tokens, heads, rope_dim] -> out like q; one kv head, and
// the values are the latents again.
DSTUNE_API(latent_attention, (const void* q, int64_t q_token, int64_t q_head, const void* q_rope,
                              int64_t q_rope_token, int64_t q_rope_head, const void* latent,
                              const void* rope, const float* latent_scale,
                              const int32_t* query_start, const int32_t* kv_lens,
                              const int32_t* block_tables, int64_t max_blocks, int64_t block_size,
                              void* out, int64_t tokens, int64_t seqs, int64_t heads,
                              int64_t latent_dim, int64_t rope_dim, float scale, int64_t dtype,
                              int64_t cache_dtype, int64_t rope_dtype, int64_t threads)) {
  Problem p{};
  p.q = q, p.q_token = q_token, p.q_head = q_head;
  p.q_rope = q_rope, p.q_rope_token = q_rope_token, p.q_rope_head = q_rope_head;
  p.k = p.v = latent, p.k_scale = p.v_scale = latent_scale;
  p.k_token = p.v_token = latent_dim;
  p.rope = rope, p.rope_dtype = rope_dtype;
  p.query_start = query_start, p.kv_lens = kv_lens, p.block_tables = block_tables;
  p.max_blocks = max_blocks, p.block_size = block_size;
  p.out = out, p.tokens = tokens, p.seqs = seqs, p.heads = heads, p.kv_heads = 1;
  p.dk = p.dv = latent_dim, p.dr = rope_dim, p.scale = scale, p.threads = threads;
  dispatch(p, dtype, cache_dtype);
}

// q [queries, heads, dk], k [keys, kv_heads, dk], v [keys, kv_heads, dv] -> [queries, heads, dv].
// Query i sees the keys 0 .. diagonal + i; lse [queries, heads] or null.
DSTUNE_API(dense_attention, (const void* q, int64_t q_token, int64_t q_head, const void* k,
                             int64_t k_token, int64_t k_head, const void* v, int64_t v_token,
                             int64_t v_head, void* out, float* lse, int64_t queries, int64_t keys,
                             int64_t diagonal, int64_t heads, int64_t kv_heads, int64_t dk,
                             int64_t dv, float scale, int64_t dtype, int64_t cache_dtype,
                             int64_t threads)) {
  const int32_t query_start[2] = {0, (int32_t)queries}, kv_len = (int32_t)keys;
  Problem p{};
  p.q = q, p.q_token = q_token, p.q_head = q_head;
  p.k = k, p.k_token = k_token, p.k_head = k_head;
  p.v = v, p.v_token = v_token, p.v_head = v_head;
  p.query_start = query_start, p.kv_lens = &kv_len;
  p.lse = lse, p.shift = diagonal - (keys - queries);
  p.out = out, p.tokens = queries, p.seqs = 1, p.heads = heads, p.kv_heads = kv_heads;
  p.dk = dk, p.dv = dv, p.scale = scale, p.threads = threads;
  dispatch(p, dtype, cache_dtype);
}
