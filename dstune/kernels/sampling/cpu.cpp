// Sampling: the filters and the stateless Gumbel draw of `reference.py`, one row per task.
#include <algorithm>
#include <atomic>
#include <vector>

#include "api.h"
#include "vec.h"

using namespace dstune;

namespace {

constexpr int64_t kSlice = 64;  // logits whose maximum stands for them when candidates are sought

uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

DSTUNE_INLINE v16u mix32(v16u x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

DSTUNE_INLINE v16f gumbel(uint64_t key, v16u ids) {
  v16u hash = mix32(mix32(ids + (uint32_t)key) ^ (uint32_t)(key >> 32));
  v16f uniform = (to_float((v16i)(hash >> 9)) + 0.5f) * 0x1p-23f;
  return -vlog(-vlog(uniform));
}

struct Row {
  const float* logits;
  int64_t vocab;
  float temperature, top_p, min_p;
  int64_t top_k;
  uint64_t key;
};

struct Candidate {
  float logit;  // divided by the temperature
  int32_t id;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The best of sixteen running (score, id) pairs; the lowest id wins ties.
struct Best {
  v16f score = splat(-INFINITY);
  v16i id = v16i{} + INT32_MAX;

  DSTUNE_INLINE void add(v16f value, v16i ids) {
    v16i better = value > score;  // later ids of a lane are larger, so equality changes nothing
    score = choose(better, value, score);
    id = (better & ids) | (~better & id);
  }
  int64_t winner() const {
    float top = hmax(score);
    int32_t found = INT32_MAX;
    for (int i = 0; i < 16; i++)
      if (score[i] == top) found = std::min(found, (int32_t)id[i]);
    return found == INT32_MAX ? 0 : found;  // nothing but NaN
  }
};

const v16i kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

template <class Score>
DSTUNE_INLINE int64_t best_of_all(const Row& row, Score score) {
  Best best;
  int64_t i = 0;
  for (; i + 16 <= row.vocab; i += 16) best.add(score(load16(row.logits + i), i), kLane + (int)i);
  if (i < row.vocab) {
    v16f value = score(load_part(row.logits + i, row.vocab - i), i);
    best.add(choose(kLane < (int)(row.vocab - i), value, splat(-INFINITY)), kLane + (int)i);
  }
  return best.winner();
}

// Collects every logit that is at least `threshold`, in id order.
void collect(const Row& row, const std::vector<float>& maxima, float threshold,
             std::vector<Candidate>& out) {
  out.clear();
  for (int64_t slice = 0; slice < (int64_t)maxima.size(); slice++) {
    if (maxima[slice] < threshold) continue;
    int64_t end = std::min(row.vocab, (slice + 1) * kSlice);
    for (int64_t i = slice * kSlice; i < end; i++) {
      float value = row.logits[i] / row.temperature;
      if (value >= threshold) out.push_back({value, (int32_t)i});
    }
  }
}

struct Buffers {
  std::vector<float> maxima, sorted;
  std::vector<Candidate> candidates;
};

float find_maxima(const Row& row, std::vector<float>& maxima) {
  maxima.clear();
  float max = -INFINITY;
  for (int64_t begin = 0; begin < row.vocab; begin += kSlice) {
    int64_t end = std::min(row.vocab, begin + kSlice);
    float largest = -INFINITY;
    for (int64_t i = begin; i < end; i++)
      largest = row.logits[i] > largest ? row.logits[i] : largest;
    maxima.push_back(largest / row.temperature);
    max = std::max(max, maxima.back());
  }
  return max;
}

// Sum of exp(logit - max) over the logits that are at least `threshold`.
double mass(const Row& row, float max, float threshold) {
  double total = 0;
  for (int64_t begin = 0; begin < row.vocab; begin += 1024) {
    int64_t end = std::min(row.vocab, begin + 1024);
    v16f sum{};
    for (int64_t i = begin; i < end; i += 16) {
      v16f value = load_at(row.logits, i, row.vocab) / row.temperature;
      v16i keep = (value >= threshold) & (kLane < (int)std::min<int64_t>(16, row.vocab - i));
      sum += choose(keep, vexp(value - max), v16f{});
    }
    total += hsum(sum);
  }
  return total;
}

// Leaves in `candidates` what the filters keep, best first.
void filter(const Row& row, Buffers& b) {
  float max = find_maxima(row, b.maxima);
  float threshold = row.min_p > 0 ? max + std::log(row.min_p) : -INFINITY;
  bool has_top_k = row.top_k > 0 && row.top_k < row.vocab;
  if (has_top_k && row.top_k <= (int64_t)b.maxima.size()) {
    // The k-th largest of the slices' maxima is a lower bound for the k-th largest logit.
    b.sorted = b.maxima;
    auto nth = b.sorted.begin() + row.top_k - 1;
    std::nth_element(b.sorted.begin(), nth, b.sorted.end(), std::greater<float>());
    threshold = std::max(threshold, *nth);
  }
  double total = -1;
  if (has_top_k || row.top_p >= 1) {
    collect(row, b.maxima, threshold, b.candidates);
  } else {
    // top_p alone: most of the mass is near the maximum, so look there before sorting everything.
    total = mass(row, max, threshold);
    float limit = max - 4;
    for (float depth = 4; limit > threshold; depth *= 1.5f, limit = max - depth)
      if (mass(row, max, limit) > row.top_p * total * (1 + 1e-5)) break;
    collect(row, b.maxima, std::max(limit, threshold), b.candidates);
  }
  auto& kept = b.candidates;
  // Rounding in log(min_p) must not decide: apply its definition to the collected.
  if (row.min_p > 0) {
    float limit = std::log(row.min_p);
    kept.erase(std::remove_if(kept.begin(), kept.end(),
                              [&](const Candidate& c) { return !(c.logit - max >= limit); }),
               kept.end());
  }
  std::sort(kept.begin(), kept.end(), before);
  if (has_top_k && (int64_t)kept.size() > row.top_k) kept.resize(row.top_k);
  if (row.top_p < 1) {
    if (total < 0) {
      total = 0;
      for (const Candidate& c : kept) total += std::exp((double)c.logit - max);
    }
    double before_it = 0;
    size_t count = 0;
    while (count < kept.size() && (count == 0 || before_it < row.top_p * total))
      before_it += std::exp((double)kept[count++].logit - max);
    kept.resize(count);
  }
}

int64_t draw(const Row& row, Buffers& b) {
  if (row.temperature <= 0) return best_of_all(row, [](v16f logit, int64_t) { return logit; });
  bool filtered = row.min_p > 0 || row.top_p < 1 || (row.top_k > 0 && row.top_k < row.vocab);
  if (!filtered)
    return best_of_all(row, [&](v16f logit, int64_t i) {
      return logit / row.temperature + gumbel(row.key, (v16u)(kLane + (int)i));
    });
  filter(row, b);
  Candidate best{-INFINITY, INT32_MAX};
  for (size_t i = 0; i < b.candidates.size(); i += 16) {
    v16u ids{};
    int64_t count = std::min<int64_t>(16, b.candidates.size() - i);
    for (int64_t j = 0; j < count; j++) ids[j] = b.candidates[i + j].id;
    v16f noise = gumbel(row.key, ids);
    for (int64_t j = 0; j < count; j++) {
      Candidate c{b.candidates[i + j].logit + noise[j], b.candidates[i + j].id};
      if (before(c, best)) best = c;
    }
  }
  return best.id == INT32_MAX ? 0 : best.id;
}

}  // namespace

// logits [batch, vocab], all others [batch] -> out [batch].
DSTUNE_API(sample, (const float* logits, int64_t stride, const float* temperature,
                    const int64_t* top_k, const float* top_p, const float* min_p,
                    const int64_t* seeds, const int64_t* positions, int64_t* out, int64_t batch,
                    int64_t vocab, int64_t threads)) {
  std::atomic<int64_t> next{0};
  bool is_small = batch * vocab < 16384;
  parallel_ranges(batch > threads ? threads : batch, threads, is_small, [&](int64_t, int64_t) {
    Buffers buffers;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < batch;) {
      uint64_t key = mix64(mix64((uint64_t)seeds[i]) ^ (uint64_t)positions[i]);
      Row row{logits + i * stride, vocab, temperature[i], top_p[i], min_p[i], top_k[i], key};
      out[i] = draw(row, buffers);
    }
  });
}
