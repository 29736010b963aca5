// What every cpu.cpp exports with, and how it spreads work over torch's OpenMP threads.
#pragma once
#include <omp.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

// library.py reads these declarations: parameters are pointers, int64_t or float.
// _SHORT functions run for microseconds and are called with the GIL held.
#define DSTUNE_API extern "C" __attribute__((visibility("default")))
#define DSTUNE_API_SHORT DSTUNE_API

namespace dstune {

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
