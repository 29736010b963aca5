// Linear layers: converts the activation rows and multiplies them, in one parallel region.
#include <algorithm>
#include <atomic>

#include "gemm.h"

using namespace dstune;

namespace {

// Activation bytes that stay in a core's L2 while every panel passes over them.
constexpr int64_t kRowBytes = 384 * 1024;
// Below this, some 30 us on one thread, a second one gains little on a quiet machine, and beside a
// busy neighbour every barrier costs a time slice: milliseconds.
constexpr int64_t kSmallBytes = 512 * 1024;
// Weight bytes of a task: enough for an increment to pay, few enough for an even finish.
constexpr int64_t kTaskBytes = 32 * 1024;

template <class C, class T>
void run(const void* x, int64_t x_stride, const uint32_t* weights, const float* column_scale,
         const float* bias, void* out, int64_t m, int64_t n, int64_t k, int64_t threads) {
  int64_t groups = (k + C::kGroup - 1) / C::kGroup, panels = (n + kPanel - 1) / kPanel;
  int64_t slices = 1 + (m * groups * 4 - 1) / kRowBytes;
  int64_t per_task = 1 + kTaskBytes / (groups * kPanel * 4 * (1 + m / 8));
  int64_t ranges = (panels + per_task - 1) / per_task;
  int64_t chunks = chunks_of(groups);
  Scratch scratch(m * (groups * 4 + chunks * sizeof(RowChunk)));
  uint32_t* packed = (uint32_t*)scratch.data;
  RowChunk* row_chunks = (RowChunk*)(packed + m * groups);
  Epilogue epilogue{row_chunks, column_scale, bias, nullptr};
  auto pack = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
      pack_row<C>((const T*)x + row * x_stride, k, packed + row * groups, groups,
                  row_chunks + row * chunks);
  };
  std::atomic<int64_t> next{0};
  auto take = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
  auto work = [&] {
    // One task is taken in advance, so that its weights can be fetched while this one computes.
    int64_t task = take();
    for (int64_t following; task < slices * ranges; task = following) {
      following = take();
      int64_t slice = task / ranges, first = task % ranges * per_task;
      int64_t last = std::min(first + per_task, panels);
      for (int64_t panel = first; panel < last; panel++) {
        int64_t ahead = panel + 1 < last ? panel + 1 : following % ranges * per_task;
        multiply_panel<C>(packed, groups, weights, groups, groups, panel, m * slice / slices,
                          m * (slice + 1) / slices, n, epilogue, (T*)out, n,
                          weights + ahead * groups * kPanel);
      }
    }
  };
  if (threads <= 1 || panels * kPanel * groups * 4 * (1 + m / 8) < kSmallBytes) {
    pack(0, m);
    work();
    return;
  }
  bool pack_first = m * k <= 8192;  // a few rows: cheaper than one more barrier
  if (pack_first) pack(0, m);
#pragma omp parallel num_threads(threads)
  {
    if (!pack_first) {
      int64_t index = omp_get_thread_num(), count = omp_get_num_threads();
      pack(m * index / count, m * (index + 1) / count);
#pragma omp barrier
    }
    work();
  }
}

template <class T>
auto for_precision(int64_t precision) {
  return precision == kFp32   ? run<Fp32, T>
         : precision == kBf16 ? run<Bf16, T>
                              : run<Int8, T>;
}

}  // namespace

// x [m, k] with rows x_stride apart -> out [m, n]. column_scale (int8 only) and bias have n padded
// to 32 elements; bias may be null.
DSTUNE_API(linear, (const void* x, int64_t x_stride, const uint32_t* weights,
                    const float* column_scale, const float* bias, void* out, int64_t m, int64_t n,
                    int64_t k, int64_t precision, int64_t dtype, int64_t threads)) {
  auto f = dtype == kF32 ? for_precision<float>(precision) : for_precision<bf16>(precision);
  if (m > 0) f(x, x_stride, weights, column_scale, bias, out, m, n, k, threads);
}
