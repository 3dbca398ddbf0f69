#include "sdk/src/precision/fp8_kernels.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/precision/fp8_elements.h"

namespace cox::detail {

extern const char* const kFp8KernelText;   // fp8_kernels.cu
extern const char* const kFp8ElementText;  // fp8_elements.h

namespace {

using fp8::kAtOnce;
using fp8::kSide;
using fp8::kThreads;

constexpr int kOldest = 89;  // the oldest with FP8 casts
constexpr std::int64_t kMostPartials = 1024;
constexpr int kBlocks = 8;  // on a multiprocessor: 2,048 threads

const char* name_of(at::ScalarType type) {
  return type == at::kBFloat16 ? "Bf16" : type == at::kHalf ? "Fp16" : "float";
}

// Kernels read 16 bytes at a time.
at::Tensor laid_out(const at::Tensor& values) {
  const at::Tensor dense = values.contiguous();
  return reinterpret_cast<std::uintptr_t>(dense.const_data_ptr()) % 16 == 0 ? dense : dense.clone();
}

Fp8Made empty_for(const at::Tensor& values, FloatFormat format, Fp8Order order) {
  const auto type = format == FloatFormat::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  Fp8Made made;
  made.codes = at::empty(values.sizes(), values.options().dtype(type));
  if (order == Fp8Order::both) {
    made.turned = at::empty({values.size(1), values.size(0)}, made.codes.options()).t();
  }
  return made;
}

template <class... Arguments>
void start(const CudaKernel& kernel, at::Device device, unsigned int blocks,
           Arguments... arguments) {
  std::array<void*, sizeof...(Arguments)> pointers{&arguments...};
  kernel.start(device, blocks, static_cast<unsigned int>(kThreads), pointers);
}

std::int64_t parts_of(std::int64_t whole, std::int64_t part) {
  return (whole + part - 1) / part;
}

// Returns test inputs: every bf16, including NaN and infinities; an odd number of values; a small
// matrix; and one with more tiles than `blocks`, so that a block handles several.
std::vector<at::Tensor> values_to_try(at::ScalarType type, std::int64_t blocks) {
  const at::Tensor all = at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16);
  const auto matrix = [](std::int64_t rows, std::int64_t columns) {
    return at::arange(rows * columns, at::kFloat).sin_().mul_(100).view({rows, columns});
  };
  std::vector<at::Tensor> values = {all.view({256, 256}), all.slice(0, 14000, 18099),
                                    matrix(80, 208), matrix(kSide * (blocks / 36 + 2), 36 * kSide)};
  for (at::Tensor& each : values) each = each.to(type);
  return values;
}

Fp8Order order_of(const at::Tensor& values) {
  const bool turns = values.dim() == 2 && values.size(0) % 16 == 0 && values.size(1) % 16 == 0;
  return turns ? Fp8Order::both : Fp8Order::rows;
}

bool has_codes(const at::Tensor& made, const at::Tensor& codes) {
  return at::equal(made.cpu().contiguous().view(at::kByte), codes);
}

bool has_counts(const at::Tensor& made, const QuantizeCounts& counts) {
  const at::Tensor host = made.cpu();
  const double* found = host.const_data_ptr<double>();
  return found[0] == static_cast<double>(counts.saturated) &&
         found[1] == static_cast<double>(counts.underflow) && found[2] == counts.amax;
}

// Returns whether a device's results equal the CPU's. `given`: the scale; 0: the tensor's own.
bool is_of_cpu(const Fp8Made& made, const at::Tensor& values, FloatFormat format, float given) {
  const at::Tensor wide = values.to(at::kFloat).contiguous();
  const auto count = static_cast<std::size_t>(wide.numel());
  const std::span all(wide.const_data_ptr<float>(), count);
  const float amax = scan(wide, ScanKind::extent).amax;
  const float scale = given != 0 ? given : 1 / fp8_multiplier(format, amax, 0);
  const at::Tensor codes = at::empty(values.sizes(), at::kByte);
  const QuantizeCounts counts =
      quantize(format, all, 1 / scale, std::span(codes.mutable_data_ptr<std::uint8_t>(), count));
  return made.scale.item<float>() == scale && has_counts(made.counts, counts) &&
         has_codes(made.codes, codes) && (!made.turned.defined() || has_codes(made.turned, codes));
}

}  // namespace

CudaSource fp8_kernel_source(at::ScalarType type) {
  return {{"fp8_kernels.cu", kFp8KernelText},
          {{"sdk/src/precision/fp8_elements.h", kFp8ElementText}},
          {concat("COX_FP8_VALUE=", name_of(type))}};
}

Result<Fp8Kernels> Fp8Kernels::make(at::Device device, at::ScalarType type) {
  const auto figures = cuda_figures(device);
  if (!figures.ok()) return figures.status();
  if (figures->capability < kOldest) {
    return failed_precondition("kernels for FP8: expected compute capability 8.9 or more, found ",
                               figures->capability / 10, ".", figures->capability % 10);
  }
  const auto code = compile_for(figures->capability, fp8_kernel_source(type));
  if (!code.ok()) return code.status();
  const auto program = CudaProgram::load(*code);
  if (!program.ok()) return program.status();
  std::vector<CudaKernel> found;
  for (const char* name : {"cox_fp8_amax", "cox_fp8_codes_e4m3", "cox_fp8_codes_e5m2",
                           "cox_fp8_both_e4m3", "cox_fp8_both_e5m2"}) {
    const auto kernel = program->kernel(name);
    if (!kernel.ok()) return kernel.status();
    found.push_back(*kernel);
  }
  const Fp8Kernels kernels(*figures, found[0], found[1], found[2], found[3], found[4]);
  if (Status right = kernels.check(device, type); !right.ok()) return right;
  return kernels;
}

Status Fp8Kernels::check(at::Device device, at::ScalarType type) const try {
  const torch::NoGradGuard no_grad;
  constexpr float kGiven = 0.37F;  // not a power of two, and clips some values
  for (const at::Tensor& values : values_to_try(type, blocks_for(INT32_MAX, kBlocks))) {
    const at::Tensor there = values.to(device);
    const at::Tensor scale = at::full({1}, kGiven, there.options().dtype(at::kFloat));
    const Fp8Order order = order_of(values);
    for (const FloatFormat format : {FloatFormat::e4m3, FloatFormat::e5m2}) {
      if (is_of_cpu(quantize(there, format, 0, order), values, format, 0) &&
          is_of_cpu(quantize(there, format, scale, order), values, format, kGiven)) {
        continue;
      }
      return internal_error("kernels for FP8: expected the CPU's codes, scale and counts of ",
                            values.numel(), " values in ", name_of(type), ", found different ones");
    }
  }
  return ok_status();
} catch (const std::exception& error) {
  return unavailable("kernels for FP8: their test run failed: ", first_line(error.what()));
}

Result<const Fp8Kernels*> Fp8Kernels::of(at::Device device, at::ScalarType type) {
  if (!device.is_cuda()) return failed_precondition("kernels for FP8: expected a CUDA device");
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) {
    return failed_precondition("kernels for FP8: expected values in fp32, bf16 or fp16");
  }
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  static std::mutex mutex;
  static std::map<std::pair<int, at::ScalarType>, Result<Fp8Kernels>> known;
  const std::lock_guard lock(mutex);
  const std::pair key(device.index(), type);
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, make(device, type)).first;
  if (!found->second.ok()) return found->second.status();
  return &*found->second;
}

unsigned int Fp8Kernels::blocks_for(std::int64_t parts, int for_each_processor) const {
  const std::int64_t most =
      static_cast<std::int64_t>(figures_.multiprocessors) * for_each_processor;
  return static_cast<unsigned int>(std::clamp<std::int64_t>(parts, 1, most));
}

Fp8Made Fp8Kernels::quantize(const at::Tensor& values, FloatFormat format, std::uint32_t margin,
                             Fp8Order order) const {
  const at::Tensor read = laid_out(values);
  Fp8Made made = empty_for(read, format, order);
  made.scale = at::empty({1}, read.options().dtype(at::kFloat));
  made.counts = at::empty({3}, read.options().dtype(at::kDouble));
  const std::int64_t each = 16 / read.element_size();
  const std::int64_t parts = parts_of(read.numel(), each * kThreads * kAtOnce);
  const unsigned int blocks = blocks_for(std::min(parts, kMostPartials), kBlocks);
  const at::Tensor partial = at::empty({blocks}, read.options().dtype(at::kInt));
  start(amax_, read.device(), blocks, read.const_data_ptr(),
        static_cast<std::uint64_t>(read.numel()), partial.mutable_data_ptr(),
        made.counts.mutable_data_ptr());
  write(read, format, partial, margin, made);
  return made;
}

Fp8Made Fp8Kernels::quantize(const at::Tensor& values, FloatFormat format, const at::Tensor& scale,
                             Fp8Order order) const {
  const at::Tensor read = laid_out(values);
  Fp8Made made = empty_for(read, format, order);
  made.scale = scale;
  made.counts = at::zeros({3}, read.options().dtype(at::kDouble));
  write(read, format, {}, 0, made);
  return made;
}

void Fp8Kernels::write(const at::Tensor& values, FloatFormat format, const at::Tensor& partial,
                       std::uint32_t margin, const Fp8Made& made) const {
  const bool turns = made.turned.defined();
  const auto at = static_cast<std::size_t>(format);
  fp8::Codes task{};
  task.values = values.const_data_ptr();
  task.rows = turns ? static_cast<std::uint64_t>(values.size(0)) : 1;
  task.columns = static_cast<std::uint64_t>(turns ? values.size(1) : values.numel());
  if (partial.defined()) {
    task.partial = static_cast<const std::uint32_t*>(partial.const_data_ptr());
    task.partials = static_cast<std::uint32_t>(partial.numel());
  }
  task.margin = margin;
  task.scale = static_cast<float*>(made.scale.data_ptr());
  task.codes = static_cast<std::uint8_t*>(made.codes.mutable_data_ptr());
  if (turns) task.turned = static_cast<std::uint8_t*>(made.turned.mutable_data_ptr());
  task.counts = made.counts.mutable_data_ptr<double>();
  const std::int64_t parts = turns
                                 ? parts_of(values.size(0), kSide) * parts_of(values.size(1), kSide)
                                 : parts_of(values.numel(), 4 * kThreads * kAtOnce);
  start(turns ? both_[at] : codes_[at], values.device(), blocks_for(parts, kBlocks), task);
}

}  // namespace cox::detail
