#include "sdk/src/device/tensor_scan.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <vector>

#include "sdk/src/device/scan_loops.h"

namespace cox::detail {
namespace {

constexpr std::int64_t kScanChunk = 1L << 17;  // elements that one thread takes at a time

std::int64_t chunks_of(std::int64_t count) {
  return (count + kScanChunk - 1) / kScanChunk;
}

// Calls look(chunk, first, count) for all chunks, on as many threads as torch uses.
template <class Look>
void for_chunks(std::int64_t count, const Look& look) {
  if (count <= kScanChunk) return look(0, 0, count);
  at::parallel_for(0, chunks_of(count), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      look(c, c * kScanChunk, std::min(kScanChunk, count - c * kScanChunk));
    }
  });
}

// The results of chunks are added in order, whoever had them first.
template <class Part, class Look>
Part sum_over_chunks(std::int64_t count, const Look& look) {
  if (count <= kScanChunk) return look(0, count);
  std::vector<Part> parts(static_cast<std::size_t>(chunks_of(count)));
  for_chunks(count, [&](std::int64_t chunk, std::int64_t first, std::int64_t size) {
    parts[static_cast<std::size_t>(chunk)] = look(first, size);
  });
  Part total{};
  for (const Part& part : parts) total += part;
  return total;
}

float decoded(std::uint32_t word, at::ScalarType type) {
  if (type == at::kFloat) return std::bit_cast<float>(word);
  const auto half = static_cast<std::uint16_t>(word);
  if (type == at::kBFloat16) return c10::BFloat16(half, c10::BFloat16::from_bits());
  return c10::Half(half, c10::Half::from_bits());
}

WordFormat words_of(at::ScalarType type) {
  return type == at::kFloat ? kFp32Words : type == at::kBFloat16 ? kBf16Words : kFp16Words;
}

template <class Value>
TensorScan scan_values(const Value* values, std::int64_t count, at::ScalarType type,
                       ScanKind kind) {
  const WordFormat format = words_of(type);
  if (kind == ScanKind::extent) {
    const std::uint32_t largest = largest_word(values, count);
    if (largest < format.infinity) return {.values = count, .amax = decoded(largest, type)};
  }
  const WordCounts found = count_words(values, count, format);
  return {count, found.nonfinite, found.tiny, found.zeros, decoded(found.largest, type)};
}

TensorScan scan_dense(const at::Tensor& tensor, ScanKind kind) {
  const at::ScalarType type = tensor.scalar_type();
  const void* data = tensor.const_data_ptr();
  return sum_over_chunks<TensorScan>(
      tensor.numel(), [&](std::int64_t first, std::int64_t count) -> TensorScan {
        if (type == at::kFloat) {
          return scan_values(static_cast<const float*>(data) + first, count, type, kind);
        }
        return scan_values(static_cast<const std::uint16_t*>(data) + first, count, type, kind);
      });
}

// non-finite, tiny, zeros, largest: four numbers, left where the tensor is.
at::Tensor figures_of(const at::Tensor& tensor) {
  const bool is_narrow = c10::elementSize(tensor.scalar_type()) < sizeof(float);
  const at::Tensor wide = is_narrow ? tensor.to(at::kFloat) : tensor;
  const at::Tensor size = at::abs(wide);
  const at::Tensor finite = at::isfinite(size);
  const at::Tensor zero = size == 0;
  const at::Tensor tiny = (size < 0x1p-14) & ~zero;
  const at::Tensor largest = at::where(finite, size, at::zeros({}, size.options())).max();
  return at::stack({(~finite).sum().to(at::kDouble), tiny.sum().to(at::kDouble),
                    zero.sum().to(at::kDouble), largest.to(at::kDouble)});
}

TensorScan read_figures(const double* figures, std::int64_t values) {
  return {values, static_cast<std::int64_t>(figures[0]), static_cast<std::int64_t>(figures[1]),
          static_cast<std::int64_t>(figures[2]), static_cast<float>(figures[3])};
}

struct Sum {
  double value = 0;
  Sum& operator+=(const Sum& other) {
    value += other.value;
    return *this;
  }
};

// The few results that are not finite are looked at again.
GradientScan with_count(double squares, const std::function<std::int64_t()>& count) {
  return {squares, std::isfinite(squares) ? 0 : count()};
}

const std::uint16_t* halves_of(const at::Tensor& tensor) {
  return static_cast<const std::uint16_t*>(tensor.const_data_ptr());
}

double copy_part(const at::Tensor& dense, float* to, std::int64_t first, std::int64_t count,
                 float factor) {
  switch (dense.scalar_type()) {
    case at::kFloat:
      return copy_fp32(dense.const_data_ptr<float>() + first, to + first, count, factor);
    case at::kBFloat16:
      return copy_bf16(halves_of(dense) + first, to + first, count, factor);
    default:
      return copy_fp16(halves_of(dense) + first, to + first, count, factor);
  }
}

}  // namespace

TensorScan& TensorScan::operator+=(const TensorScan& other) {
  values += other.values;
  nonfinite += other.nonfinite;
  tiny += other.tiny;
  zeros += other.zeros;
  amax = std::max(amax, other.amax);
  return *this;
}

bool has_own_loops(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) &&
         tensor.is_non_overlapping_and_dense();
}

PendingScan start_scan(const at::Tensor& tensor, ScanKind kind) {
  if (!tensor.defined() || tensor.numel() == 0 || !c10::isFloatingType(tensor.scalar_type())) {
    return {};
  }
  if (has_own_loops(tensor)) return {scan_dense(tensor, kind), {}};
  const torch::NoGradGuard no_grad;
  const at::Tensor plain = tensor.detach();
  if (plain.layout() != at::kStrided)
    return {{.values = tensor.numel()}, figures_of(plain.to_dense())};
  if (plain.is_cpu() && c10::elementSize(plain.scalar_type()) <= sizeof(float)) {
    const at::Tensor dense = plain.contiguous();
    if (has_own_loops(dense)) return {scan_dense(dense, kind), {}};
  }
  return {{.values = tensor.numel()}, figures_of(plain)};
}

void read_scans(std::span<PendingScan* const> scans) {
  const torch::NoGradGuard no_grad;
  std::vector<PendingScan*> left;
  for (PendingScan* each : scans) {
    if (each->on_device.defined()) left.push_back(each);
  }
  while (!left.empty()) {
    const at::Device device = left.front()->on_device.device();
    const auto elsewhere = std::stable_partition(
        left.begin(), left.end(), [&](auto* each) { return each->on_device.device() == device; });
    std::vector<at::Tensor> figures;
    for (auto each = left.begin(); each != elsewhere; ++each) {
      figures.push_back(std::exchange((*each)->on_device, at::Tensor()));
    }
    const at::Tensor all = at::stack(figures).to(at::kCPU);
    const double* row = all.const_data_ptr<double>();
    for (auto each = left.begin(); each != elsewhere; ++each, row += 4) {
      (*each)->scan = read_figures(row, (*each)->scan.values);
    }
    left.erase(left.begin(), elsewhere);
  }
}

TensorScan scan(const at::Tensor& tensor, ScanKind kind) {
  PendingScan pending = start_scan(tensor, kind);
  PendingScan* const one = &pending;
  read_scans({&one, 1});
  return pending.scan;
}

std::int64_t count_unmasked(const at::Tensor& tensor) {
  const torch::NoGradGuard no_grad;
  const at::Tensor plain = tensor.detach();
  return (at::isnan(plain) | at::isposinf(plain)).sum().item<std::int64_t>();
}

GradientScan scan_gradient(const at::Tensor& gradient) {
  const at::ScalarType type = gradient.scalar_type();
  const auto part = [&](std::int64_t first, std::int64_t count) -> Sum {
    if (type == at::kFloat) {
      return {squares_of_fp32(gradient.const_data_ptr<float>() + first, count)};
    }
    const std::uint16_t* values = halves_of(gradient) + first;
    return {type == at::kHalf ? squares_of_fp16(values, count) : squares_of_bf16(values, count)};
  };
  const double squares = sum_over_chunks<Sum>(gradient.numel(), part).value;
  return with_count(squares, [&] { return scan_dense(gradient, ScanKind::extent).nonfinite; });
}

GradientScan copy_and_scan(const at::Tensor& gradient, std::span<float> to, float factor) {
  const torch::NoGradGuard no_grad;
  at::Tensor source = gradient.detach();
  if (!source.is_contiguous() || !has_own_loops(source)) {
    source = source.to(at::kCPU, at::kFloat).contiguous();
  }
  const auto part = [&](std::int64_t first, std::int64_t count) -> Sum {
    return {copy_part(source, to.data(), first, count, factor)};
  };
  const auto size = static_cast<std::int64_t>(to.size());
  const double squares = sum_over_chunks<Sum>(size, part).value;
  return with_count(squares, [&] {
    return sum_over_chunks<TensorScan>(size,
                                       [&](std::int64_t first, std::int64_t count) {
                                         return scan_values(to.data() + first, count, at::kFloat,
                                                            ScanKind::extent);
                                       })
        .nonfinite;
  });
}

}  // namespace cox::detail
