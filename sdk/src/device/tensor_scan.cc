#include "sdk/src/device/tensor_scan.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "sdk/src/device/scan_loops.h"

namespace cox::detail {
namespace {

constexpr std::int64_t kScanChunk = 1L << 17;  // elements for one thread at a time

// Calls look(first, count) for all chunks, on as many threads as torch uses. Adds the results in
// order.
template <class Part, class Look>
Part sum_over_chunks(std::int64_t count, const Look& look) {
  if (count <= kScanChunk) return look(0, count);
  const std::int64_t chunks = (count + kScanChunk - 1) / kScanChunk;
  std::vector<Part> parts(static_cast<std::size_t>(chunks));
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      parts[static_cast<std::size_t>(c)] =
          look(c * kScanChunk, std::min(kScanChunk, count - c * kScanChunk));
    }
  });
  Part total{};
  for (const Part& part : parts) total += part;
  return total;
}

// Calls body(From(), values) with the type and the address of a tensor's values. REQUIRES:
// has_own_loops(dense).
template <class Body>
auto with_values(const at::Tensor& dense, const Body& body) {
  const void* data = dense.const_data_ptr();
  switch (dense.scalar_type()) {
    case at::kFloat:
      return body(FromFp32(), static_cast<const float*>(data));
    case at::kBFloat16:
      return body(FromBf16(), static_cast<const std::uint16_t*>(data));
    default:
      return body(FromFp16(), static_cast<const std::uint16_t*>(data));
  }
}

template <class From>
TensorScan scan_values(const typename From::Value* values, std::int64_t count, ScanKind kind) {
  if (kind == ScanKind::extent) {
    const std::uint32_t largest = largest_word(values, count);
    if (largest < From::kWords.infinity) return {.values = count, .amax = decoded<From>(largest)};
  }
  const WordCounts found = count_words(values, count, From::kWords);
  return {count, found.nonfinite, found.tiny, found.zeros, decoded<From>(found.largest)};
}

TensorScan scan_dense(const at::Tensor& tensor, ScanKind kind) {
  return with_values(tensor, [&]<class From>(From, const auto* values) {
    return sum_over_chunks<TensorScan>(tensor.numel(), [&](std::int64_t first, std::int64_t count) {
      return scan_values<From>(values + first, count, kind);
    });
  });
}

// Returns an extent's one figure: the largest magnitude, NaN or infinite if any value is.
constexpr std::int64_t kExtentFigures = 1;
at::Tensor extent_of(const at::Tensor& tensor) {
  const double infinity = std::numeric_limits<double>::infinity();
  const bool is_wide = tensor.scalar_type() == at::kDouble;
  return at::linalg_vector_norm(tensor, infinity, {}, false, is_wide ? at::kDouble : at::kFloat);
}

// Returns the figures of other scans: non-finite, tiny, zeros, largest. Each operation on `size`
// reads the whole tensor once more. The figures stay on the tensor's device.
at::Tensor figures_of(const at::Tensor& tensor, ScanKind kind) {
  const bool has_arithmetic = c10::elementSize(tensor.scalar_type()) > 1;  // fp8 has none
  const at::Tensor values = has_arithmetic ? tensor : tensor.to(at::kFloat);
  if (kind == ScanKind::extent) return extent_of(values);
  const at::Tensor size = at::abs(values);
  const at::Tensor finite = (size < std::numeric_limits<double>::infinity()).sum();
  const at::Tensor largest = at::nan_to_num(size, 0, 0).max().to(at::kDouble);
  const at::Tensor zeros = (size == 0).sum().to(at::kDouble);
  const at::Tensor tiny = (size < 0x1p-14).sum().to(at::kDouble) - zeros;
  return at::stack(
      {static_cast<double>(size.numel()) - finite.to(at::kDouble), tiny, zeros, largest});
}

TensorScan read_figures(const double* figures, std::int64_t count, std::int64_t values) {
  if (count == kExtentFigures) {
    const bool is_finite = std::isfinite(figures[0]);
    return {.values = values,
            .nonfinite = is_finite ? 0 : 1,
            .amax = is_finite ? static_cast<float>(figures[0]) : 0};
  }
  return {values, static_cast<std::int64_t>(figures[0]), static_cast<std::int64_t>(figures[1]),
          static_cast<std::int64_t>(figures[2]), static_cast<float>(figures[3])};
}

struct ScansOfDevice {
  at::Tensor figures;  // one scan after another, still on the device
  std::vector<ScanOnDevice> scans;
};

// Collects the figures on devices; a scan that appears twice counts once.
std::vector<ScansOfDevice> by_device(std::span<PendingScan* const> scans) {
  struct Waiting {
    PendingScan* pending = nullptr;
    at::Tensor figures;
  };
  std::vector<Waiting> left;
  for (PendingScan* each : scans) {
    if (each->on_device.defined()) {
      left.push_back({each, std::exchange(each->on_device, at::Tensor())});
    }
  }
  std::vector<ScansOfDevice> parts;
  while (!left.empty()) {
    const at::Device device = left.front().figures.device();
    const auto elsewhere = std::stable_partition(
        left.begin(), left.end(), [&](auto& each) { return each.figures.device() == device; });
    std::vector<at::Tensor> figures;
    ScansOfDevice& part = parts.emplace_back();
    for (auto each = left.begin(); each != elsewhere; ++each) {
      figures.push_back(each->figures.reshape({-1}));
      part.scans.push_back({each->pending, each->figures.numel()});
    }
    part.figures = at::cat(figures).to(at::kDouble);
    left.erase(left.begin(), elsewhere);
  }
  return parts;
}

void read_figures(const at::Tensor& figures, const std::vector<ScanOnDevice>& scans) {
  const double* first = figures.const_data_ptr<double>();
  for (const ScanOnDevice& each : scans) {
    each.pending->scan = read_figures(first, each.figures, each.pending->scan.values);
    first += each.figures;
  }
}

// Scans the few non-finite results again.
GradientScan with_count(double squares, const std::function<std::int64_t()>& count) {
  return {squares, std::isfinite(squares) ? 0 : count()};
}

// The tensors' own type is too narrow: a norm in bf16 has two digits.
at::ScalarType widest_of(const std::vector<at::Tensor>& tensors) {
  const bool has_fp64 = std::ranges::any_of(
      tensors, [](const at::Tensor& tensor) { return tensor.scalar_type() == at::kDouble; });
  return has_fp64 ? at::kDouble : at::kFloat;
}

// Returns the largest magnitude of each tensor in fp64, NaN or infinite if a value is. Computed in
// the tensors' own width, because fp32 would turn large numbers of fp64 into infinities.
at::Tensor largest_of_each(const std::vector<at::Tensor>& tensors) {
  const double infinity = std::numeric_limits<double>::infinity();
  return at::stack(at::_foreach_norm(tensors, infinity, widest_of(tensors))).to(at::kDouble);
}

// One read for all tensors, because a read for each costs more than its norm.
double norm_of_norms(const std::vector<at::Tensor>& norms) {
  const at::Tensor all = at::stack(norms).to(at::kCPU, at::kDouble);
  return at::linalg_vector_norm(all, 2).item<double>();
}

double norm_through_torch(const std::vector<at::Tensor>& tensors) {
  const double norm = norm_of_norms(at::_foreach_norm(tensors, 2, widest_of(tensors)));
  if (std::isfinite(norm)) return norm;
  // fp32 squares overflow from 1.8e19 on; only then is the slower sum in double necessary.
  std::vector<at::Tensor> norms;
  for (const at::Tensor& tensor : tensors) {
    norms.push_back(at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble));
  }
  return norm_of_norms(norms);
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
  if (tensor.defined() && tensor.is_complex()) return start_scan(as_reals(dense(tensor)), kind);
  if (!tensor.defined() || tensor.numel() == 0 || !c10::isFloatingType(tensor.scalar_type())) {
    return {};
  }
  if (has_own_loops(tensor)) return {scan_dense(tensor, kind), {}};
  const torch::NoGradGuard no_grad;
  const at::Tensor plain = tensor.detach();
  if (plain.layout() != at::kStrided)
    return {{.values = tensor.numel()}, figures_of(plain.to_dense(), kind)};
  if (plain.is_cpu() && c10::elementSize(plain.scalar_type()) <= sizeof(float)) {
    const at::Tensor dense = plain.contiguous();
    if (has_own_loops(dense)) return {scan_dense(dense, kind), {}};
  }
  return {{.values = tensor.numel()}, figures_of(plain, kind)};
}

at::Tensor largest_on_device(const std::vector<at::Tensor>& figures) {
  std::vector<at::Tensor> largest;  // the last of each
  for (const at::Tensor& each : figures) largest.push_back(each.reshape({-1}).narrow(0, -1, 1));
  const at::Tensor all = at::cat(largest).to(at::kDouble);
  return at::where(at::isfinite(all), all, at::zeros({}, all.options()));
}

void read_scans(std::span<PendingScan* const> scans) {
  const torch::NoGradGuard no_grad;
  for (const ScansOfDevice& part : by_device(scans)) {
    read_figures(part.figures.to(at::kCPU), part.scans);
  }
}

PendingRead::PendingRead(std::span<PendingScan* const> scans) {
  const torch::NoGradGuard no_grad;
  for (ScansOfDevice& part : by_device(scans)) {
    parts_.push_back({HostCopy(part.figures), std::move(part.scans)});
  }
}

bool PendingRead::finish() {
  while (!parts_.empty() && parts_.back().figures.has_come()) {
    read_figures(parts_.back().figures.tensor(), parts_.back().scans);
    parts_.pop_back();
  }
  return parts_.empty();
}

FiniteLook::FiniteLook(std::span<const at::Tensor> tensors) : nonfinite_(tensors.size()) {
  const torch::NoGradGuard no_grad;
  std::map<c10::DeviceIndex, std::pair<std::vector<at::Tensor>, std::vector<std::size_t>>> there;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (tensor.is_cpu()) {
      nonfinite_[i] = count_nonfinite(tensor);
      continue;
    }
    auto& [values, places] = there[tensor.device().index()];
    values.push_back(dense(tensor).detach());
    places.push_back(i);
  }
  for (auto& [device, of_device] : there) {
    auto& [values, places] = of_device;
    parts_.push_back({HostCopy(largest_of_each(values)), std::move(places)});
  }
}

void FiniteLook::read(const Part& part) {
  const double* magnitude = part.magnitudes.tensor().const_data_ptr<double>();
  for (const std::size_t i : part.tensors) nonfinite_[i] = std::isfinite(*magnitude++) ? 0 : 1;
}

bool FiniteLook::finish() {
  for (; !parts_.empty() && parts_.back().magnitudes.has_come(); parts_.pop_back())
    read(parts_.back());
  return parts_.empty();
}

void FiniteLook::wait() {
  for (; !parts_.empty(); parts_.pop_back()) {
    parts_.back().magnitudes.wait();
    read(parts_.back());
  }
}

bool FiniteLook::is_bad() const {
  return std::ranges::any_of(nonfinite_, [](std::int64_t count) { return count > 0; });
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
  const double squares = with_values(gradient, [&]<class From>(From, const auto* values) {
    return sum_over_chunks<double>(gradient.numel(), [&](std::int64_t first, std::int64_t count) {
      return squares_of<From>(values + first, count);
    });
  });
  return with_count(squares, [&] { return scan_dense(gradient, ScanKind::extent).nonfinite; });
}

GradientScan copy_and_scan(const at::Tensor& gradient, std::span<float> to, float factor) {
  const torch::NoGradGuard no_grad;
  at::Tensor source = gradient.detach();
  if (!source.is_contiguous() || !has_own_loops(source)) {
    source = source.to(at::kCPU, at::kFloat).contiguous();
  }
  const auto size = static_cast<std::int64_t>(to.size());
  const double squares = with_values(source, [&]<class From>(From, const auto* values) {
    return sum_over_chunks<double>(size, [&](std::int64_t first, std::int64_t count) {
      return copy_scaled<From>(values + first, to.data() + first, count, factor);
    });
  });
  return with_count(squares, [&] {
    const at::Tensor written = at::from_blob(to.data(), {size}, at::kFloat);
    return scan_dense(written, ScanKind::extent).nonfinite;
  });
}

at::Tensor dense(const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided) return tensor;
  return (tensor.is_sparse() ? tensor.coalesce() : tensor).to_dense();
}

at::Tensor as_reals(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.detach().resolve_conj()) : tensor;
}

double l2_norm(std::span<const at::Tensor> tensors) {
  const torch::NoGradGuard no_grad;
  double squares = 0;
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (has_own_loops(tensor)) {
      squares += scan_gradient(tensor).squares;
    } else {
      others.push_back(as_reals(dense(tensor)));
    }
  }
  const double plain = std::sqrt(squares);
  return others.empty() ? plain : std::hypot(plain, norm_through_torch(others));
}

LateNorm LateNorm::of(const std::vector<at::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> filled;
  std::ranges::copy_if(tensors, std::back_inserter(filled),
                       [](const at::Tensor& tensor) { return tensor.numel() > 0; });
  if (filled.empty()) return LateNorm(0);
  return LateNorm(HostCopy(at::stack(at::_foreach_norm(filled, 2, at::kDouble))));
}

double LateNorm::value() const {
  const at::Tensor& each = each_.tensor();
  return each.defined() ? at::linalg_vector_norm(each, 2).item<double>() : known_;
}

std::vector<at::Tensor> gradients_of(std::span<const at::Tensor> parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

std::int64_t count_nonfinite(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  return scan(tensor, has_own_loops(tensor) ? ScanKind::extent : ScanKind::small).nonfinite;
}

}  // namespace cox::detail
