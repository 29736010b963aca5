// DeepSeek's expert gates. Among equal scores the lowest expert id wins.
#include <algorithm>
#include <cmath>
#include <vector>

#include "api.h"

using namespace dstune;

namespace {

// Writes the indices of the k largest values, best first.
void top_k(const float* values, int64_t n, int64_t k, int64_t* out, std::vector<int64_t>& order) {
  order.resize(n);
  for (int64_t i = 0; i < n; i++) order[i] = i;
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int64_t a, int64_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
  std::copy(order.begin(), order.begin() + k, out);
}

struct Gate {
  int64_t experts, top_k, n_group, topk_group;
  bool is_sigmoid, normalise;
  float factor;
};

struct Buffers {
  std::vector<float> scores, choice, group_scores;
  std::vector<int64_t> groups, order;
};

// Leaves only the experts of the best groups in the running; the others get `excluded`.
void keep_groups(const Gate& g, Buffers& b, float excluded) {
  int64_t size = g.experts / g.n_group;
  b.group_scores.assign(g.n_group, 0.f);
  for (int64_t group = 0; group < g.n_group; group++) {
    float best = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < size; i++) {
      float value = b.choice[group * size + i];
      second = std::max(second, std::min(best, value));
      best = std::max(best, value);
    }
    b.group_scores[group] = g.is_sigmoid && size > 1 ? best + second : best;
  }
  b.groups.resize(g.topk_group);
  top_k(b.group_scores.data(), g.n_group, g.topk_group, b.groups.data(), b.order);
  for (int64_t group = 0; group < g.n_group; group++)
    if (std::find(b.groups.begin(), b.groups.end(), group) == b.groups.end())
      std::fill_n(b.choice.begin() + group * size, size, excluded);
}

void route(const Gate& g, const float* logits, const float* bias, float* weights, int64_t* ids,
           Buffers& b) {
  b.scores.resize(g.experts);
  if (g.is_sigmoid) {
    for (int64_t i = 0; i < g.experts; i++) b.scores[i] = 1.f / (1.f + std::exp(-logits[i]));
  } else {
    float max = *std::max_element(logits, logits + g.experts), sum = 0.f;
    for (int64_t i = 0; i < g.experts; i++) sum += b.scores[i] = std::exp(logits[i] - max);
    for (float& score : b.scores) score /= sum;
  }
  b.choice = b.scores;
  if (bias)
    for (int64_t i = 0; i < g.experts; i++) b.choice[i] += bias[i];
  if (g.n_group > 1) keep_groups(g, b, g.is_sigmoid ? -INFINITY : 0.f);
  top_k(b.choice.data(), g.experts, g.top_k, ids, b.order);
  float sum = 0.f;
  for (int64_t i = 0; i < g.top_k; i++) sum += weights[i] = b.scores[ids[i]];
  // V2 scales only what it does not normalise, and does not normalise a single expert.
  bool normalise = g.normalise && (g.is_sigmoid || g.top_k > 1);
  float factor = g.is_sigmoid || !normalise ? g.factor : 1.f;
  for (int64_t i = 0; i < g.top_k; i++)
    weights[i] = (normalise ? weights[i] / (sum + 1e-20f) : weights[i]) * factor;
}

}  // namespace

// logits [tokens, experts], bias [experts] or null -> weights, ids [tokens, top_k].
DSTUNE_API_SHORT(gate, (const float* logits, int64_t stride, const float* bias, float* weights,
                        int64_t* ids, int64_t tokens, int64_t experts, int64_t top_k,
                        int64_t n_group, int64_t topk_group, int64_t is_sigmoid, int64_t normalise,
                        float factor, int64_t threads)) {
  Gate gate{experts, top_k, n_group, topk_group, is_sigmoid != 0, normalise != 0, factor};
  parallel_ranges(tokens, threads, tokens * experts < 2048, [&](int64_t begin, int64_t end) {
    Buffers buffers;
    for (int64_t t = begin; t < end; t++)
      route(gate, logits + t * stride, bias, weights + t * top_k, ids + t * top_k, buffers);
  });
}
