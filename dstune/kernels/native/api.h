// What every cpu.cpp exports with, and how it spreads work over torch's OpenMP threads.
#pragma once
#include <omp.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

// DSTUNE_API(name, (parameters)) { body } exports a function as dstune_name. Its arguments arrive
// as an array of 64-bit words, a float as a double: ctypes takes a third of the time to pass one
// pointer that it takes for twenty arguments. library.py reads these declarations and packs the
// words; parameters are pointers, int64_t or float.
// _SHORT functions run for microseconds and are called with the GIL held.
#define DSTUNE_API(name, ...)                                                                     \
  static void run_##name __VA_ARGS__;                                                             \
  extern "C" __attribute__((visibility("default"))) void dstune_##name(const int64_t* words) {    \
    dstune::unpack(run_##name, words);                                                            \
  }                                                                                               \
  static void run_##name __VA_ARGS__
#define DSTUNE_API_SHORT DSTUNE_API

namespace dstune {

template <class A>
inline A argument(const int64_t* word) {
  if constexpr (std::is_pointer_v<A>) {
    return (A)*word;
  } else if constexpr (std::is_same_v<A, float>) {
    double value;
    memcpy(&value, word, sizeof(value));
    return (float)value;
  } else {
    static_assert(std::is_same_v<A, int64_t>);
    return *word;
  }
}
template <class... A, size_t... I>
inline void unpack(void (*f)(A...), const int64_t* words, std::index_sequence<I...>) {
  f(argument<A>(words + I)...);
}
template <class... A>
inline void unpack(void (*f)(A...), const int64_t* words) {
  unpack(f, words, std::index_sequence_for<A...>{});
}

// Calls f(begin, end) on even parts of 0 .. n. Small work (below some 15 us on one thread) stays on
// the calling thread: a region costs 1-2 us, and milliseconds when a neighbour holds the other
// core. A parallel region always asks for all threads: libgomp ends the ones that a smaller team
// leaves out, and starting them again costs far more than a region.
template <class F>
inline void parallel_ranges(int64_t n, int64_t threads, bool is_small, F f) {
  if (is_small || threads <= 1 || n <= 1) {
    if (n > 0) f(int64_t(0), n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    int64_t index = omp_get_thread_num(), count = omp_get_num_threads();
    int64_t begin = n * index / count, end = n * (index + 1) / count;
    if (begin < end) f(begin, end);
  }
}

// Working memory of one call, kept by the calling thread for its next call.
struct Scratch {
  char* data;
  explicit Scratch(int64_t bytes) {
    static thread_local std::unique_ptr<char, decltype(&free)> kept(nullptr, &free);
    static thread_local int64_t size = 0;
    if (size < bytes) {
      size = (bytes + 4095) / 4096 * 4096;
      kept.reset((char*)aligned_alloc(4096, size));
    }
    data = kept.get();
  }
};

}  // namespace dstune
