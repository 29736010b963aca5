// Writes rows into the cache at their slots, quantising where the cache is int8; alone, and
// behind the rotation (and the norm) that they come from.
#include <type_traits>

#include "api.h"
#include "norm/normalise.h"
#include "rope/rotate.h"
#include "vec.h"

using namespace dstune;

namespace {

// Stores n elements as row `row` of a cache; an int8 row also gets its scale.
template <class In, class Out>
void store_row(const In* in, void* cache, float* scales, int64_t row, int64_t n) {
  Out* out = (Out*)cache + row * n;
  if constexpr (std::is_same_v<Out, int8_t>) {
    v16f amax{};
    for (int64_t i = 0; i < n; i += 16) amax = vmax(amax, vabs(load_at(in, i, n)));
    float scale = fmaxf(hmax(amax) / 127.f, 1e-6f), inverse = 1.f / scale;
    scales[row] = scale;
    for (int64_t i = 0; i < n; i += 16) {
      v16f x = load_at(in, i, n) * inverse;
      store_at(out, i, n, vmin(vmax(x, splat(-127.f)), splat(127.f)));
    }
  } else {
    for (int64_t i = 0; i < n; i += 16) store_at(out, i, n, load_at(in, i, n));
  }
}

// One cache tensor [slots, heads, dim] and its scales [slots, heads] or null.
template <class In>
struct Cache {
  void* data;
  float* scales;
  int64_t heads, dim;
  void (*store)(const In*, void*, float*, int64_t, int64_t);

  Cache(void* data, float* scales, int64_t heads, int64_t dim, int64_t dtype)
      : data(data), scales(scales), heads(heads), dim(dim),
        store(dtype == kF32    ? store_row<In, float>
              : dtype == kBF16 ? store_row<In, bf16>
              : dtype == kF16  ? store_row<In, half>
                               : store_row<In, int8_t>) {}

  void write(int64_t slot, const In* rows, int64_t head_stride) const {
    for (int64_t head = 0; head < heads; head++)
      store(rows + head * head_stride, data, scales, slot * heads + head, dim);
  }
};

template <class T>
void write(const T* rows, int64_t token_stride, int64_t head_stride, const Cache<T>& cache,
           const int64_t* slots, int64_t tokens, int64_t threads) {
  bool is_small = tokens * cache.heads * cache.dim < 98304;
  parallel_ranges(tokens, threads, is_small, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++)
      if (slots[token] >= 0)
        cache.write(slots[token], rows + token * token_stride, head_stride);
  });
}

template <class T>
void rotate_and_write_kv(T* qkv, int64_t token_stride, int64_t head_stride, int64_t heads,
                         const Rotation& rotation, const Cache<T>& keys, const Cache<T>& values,
                         const int64_t* slots, int64_t tokens, int64_t threads) {
  int64_t rotated = heads + keys.heads;
  bool is_small = tokens * (rotated + keys.heads) * keys.dim < 98304;
  parallel_ranges(tokens, threads, is_small, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; token++) {
      T* row = qkv + token * token_stride;
      rotation.rotate(token, row, head_stride, rotated);
      if (slots[token] < 0) continue;
      keys.write(slots[token], row + heads * head_stride, head_stride);
      values.write(slots[token], row + rotated * head_stride, head_stride);
    }
  });
}

// The rotary parts of the queries, [tokens, heads], and rows of latents with a key behind each.
template <class T>
struct LatentRows {
  T* rotary;
  int64_t token_stride, head_stride, heads;
  T* latents;
  int64_t latent_stride;
};

template <class T>
void rotate_and_write_latent(const LatentRows<T>& rows, const T* weight, float eps,
                             const Rotation& rotation, const Cache<T>& latents,
                             const Cache<T>& keys, const int64_t* slots, int64_t tokens,
                             int64_t threads) {
  bool is_small = tokens * (rows.heads * keys.dim + latents.dim) < 98304;
  parallel_ranges(tokens, threads, is_small, [&](int64_t begin, int64_t end) {
    Scratch scratch(latents.dim * sizeof(T));
    T* normed = (T*)scratch.data;
    for (int64_t token = begin; token < end; token++) {
      rotation.rotate(token, rows.rotary + token * rows.token_stride, rows.head_stride, rows.heads);
      if (slots[token] < 0) continue;
      T* latent = rows.latents + token * rows.latent_stride;
      T* key = latent + latents.dim;
      rotation.rotate(token, key, 0, 1);
      normalise_row(latent, weight, normed, latents.dim, eps);
      latents.write(slots[token], normed, 0);
      keys.write(slots[token], key, 0);
    }
  });
}

}  // namespace

// rows [tokens, heads, dim] -> cache [slots, heads, dim], scales [slots, heads] or null.
DSTUNE_API_SHORT(write_cache, (const void* rows, int64_t token_stride, int64_t head_stride,
                               void* cache, float* scales, const int64_t* slots, int64_t tokens,
                               int64_t heads, int64_t dim, int64_t dtype, int64_t cache_dtype,
                               int64_t threads)) {
  auto call = [&](auto* typed) {
    typedef std::remove_const_t<std::remove_pointer_t<decltype(typed)>> T;
    write<T>(typed, token_stride, head_stride, {cache, scales, heads, dim, cache_dtype}, slots,
             tokens, threads);
  };
  dtype == kF32 ? call((const float*)rows) : call((const bf16*)rows);
}

// qkv [tokens, heads + 2 kv_heads, dim]: rotates queries and keys in place, stores keys and values.
DSTUNE_API_SHORT(rotate_and_write_kv,
                 (void* qkv, int64_t token_stride, int64_t head_stride, int64_t heads,
                  int64_t kv_heads, int64_t dim, const int64_t* positions, const float* cos,
                  const float* sin, int64_t interleaved, void* k, void* v, float* k_scales,
                  float* v_scales, const int64_t* slots, int64_t tokens, int64_t dtype,
                  int64_t cache_dtype, int64_t threads)) {
  Rotation rotation{positions, cos, sin, dim / 2, interleaved};
  auto call = [&](auto* typed) {
    typedef std::remove_pointer_t<decltype(typed)> T;
    rotate_and_write_kv<T>(typed, token_stride, head_stride, heads, rotation,
                           {k, k_scales, kv_heads, dim, cache_dtype},
                           {v, v_scales, kv_heads, dim, cache_dtype}, slots, tokens, threads);
  };
  dtype == kF32 ? call((float*)qkv) : call((bf16*)qkv);
}

// Rotates the last rope_dim of query [tokens, heads, query_dim] in place; normalises latents
// [tokens, rank + rope_dim] by weight [rank], rotates the keys behind them, stores both.
DSTUNE_API_SHORT(rotate_and_write_latent,
                 (void* query, int64_t token_stride, int64_t head_stride, int64_t heads,
                  int64_t query_dim, void* latents, int64_t latent_stride, int64_t rank,
                  int64_t rope_dim, const void* weight, float eps, const int64_t* positions,
                  const float* cos, const float* sin, int64_t interleaved, void* latent_cache,
                  void* key_cache, float* scales, const int64_t* slots, int64_t tokens,
                  int64_t dtype, int64_t latent_dtype, int64_t key_dtype, int64_t threads)) {
  Rotation rotation{positions, cos, sin, rope_dim / 2, interleaved};
  auto call = [&](auto* typed) {
    typedef std::remove_pointer_t<decltype(typed)> T;
    rotate_and_write_latent<T>(
        {typed + query_dim - rope_dim, token_stride, head_stride, heads, (T*)latents,
         latent_stride},
        (const T*)weight, eps, rotation, {latent_cache, scales, 1, rank, latent_dtype},
        {key_cache, nullptr, 1, rope_dim, key_dtype}, slots, tokens, threads);
  };
  dtype == kF32 ? call((float*)query) : call((bf16*)query);
}
