#include "sdk/src/parallel/batch_statistics.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace cox::detail {
namespace {

void append(std::vector<double>& to, const at::Tensor& tensor) {
  const at::Tensor wide = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* first = wide.const_data_ptr<double>();
  to.insert(to.end(), first, first + wide.numel());
}

// Copies the values of `tensor` into it; returns the rest.
std::span<const double> write_one(const at::Tensor& tensor, std::span<const double> values) {
  const auto size = static_cast<std::size_t>(tensor.numel());
  auto* first = const_cast<double*>(values.data());  // from_blob takes no const; only read
  tensor.copy_(at::from_blob(first, tensor.sizes(), at::kDouble));
  return values.subspan(size);
}

std::int64_t count_of(const at::Tensor& tracked) {
  return tracked.defined() ? tracked.item<std::int64_t>() : 0;
}

constexpr double kNoPart = -1;

Status check(std::span<const StatisticsPart> parts, std::size_t modules, std::size_t values) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].micro_batch != i) {
      return internal_error("running statistics: expected micro-batch " + std::to_string(i) +
                            " next, found " + std::to_string(parts[i].micro_batch));
    }
    if (parts[i].runs.size() != modules || parts[i].values.size() != values) {
      return internal_error("running statistics: micro-batch " + std::to_string(i) + " has " +
                            std::to_string(parts[i].values.size()) + " values, expected " +
                            std::to_string(values));
    }
  }
  return ok_status();
}

// A plain average counts micro-batches, so it must see each once.
Status check_average(std::span<const StatisticsPart> parts, std::size_t module) {
  for (const StatisticsPart& part : parts) {
    const std::uint32_t runs = part.runs[module];
    if (runs == parts[0].runs[module] && runs <= 1) continue;
    return failed_precondition(
        "running statistics: expected a norm without momentum to run once in every micro-batch, "
        "found " +
        std::to_string(runs) + " runs in micro-batch " + std::to_string(part.micro_batch) +
        "; give the norm a momentum");
  }
  return ok_status();
}

double decay_of(const StatisticsModule& module, const StatisticsPart& part, std::uint32_t runs) {
  const double average =
      1.0 / (module.tracked + static_cast<double>(part.micro_batch) + 1);  // as in the module
  const double once = 1 - module.momentum.value_or(average);
  double decay = 1;
  for (std::uint32_t i = 0; i < runs; ++i) decay *= once;
  return decay;
}

}  // namespace

Result<std::vector<double>> fold_statistics(std::span<const StatisticsModule> modules,
                                            std::vector<double> start,
                                            std::vector<StatisticsPart> parts) {
  std::ranges::sort(parts,
                    [](const auto& a, const auto& b) { return a.micro_batch < b.micro_batch; });
  if (Status whole = check(parts, modules.size(), start.size()); !whole.ok()) return whole;
  std::size_t first = 0;
  for (std::size_t m = 0; m < modules.size(); first += modules[m++].values) {
    Status average = modules[m].momentum ? ok_status() : check_average(parts, m);
    if (!average.ok()) return average;
    for (const StatisticsPart& part : parts) {
      if (part.runs[m] == 0) continue;
      const double decay = decay_of(modules[m], part, part.runs[m]);
      for (std::size_t i = first; i < first + modules[m].values; ++i) {
        const double value = part.values[i] + decay * start[i];
        start[i] = modules[m].in_fp32 ? static_cast<double>(static_cast<float>(value)) : value;
      }
    }
  }
  return start;
}

std::size_t row_width(std::span<const StatisticsModule> modules) {
  std::size_t width = 1 + modules.size();
  for (const StatisticsModule& module : modules) width += module.values;
  return width;
}

std::vector<double> to_rows(std::span<const StatisticsPart> parts, std::size_t rows,
                            std::size_t width) {
  std::vector<double> made(rows * width, kNoPart);
  auto row = made.begin();
  for (const StatisticsPart& part : parts) {
    auto next = row;
    *next++ = static_cast<double>(part.micro_batch);
    next = std::copy(part.runs.begin(), part.runs.end(), next);
    std::copy(part.values.begin(), part.values.end(), next);
    row += static_cast<std::ptrdiff_t>(width);
  }
  return made;
}

std::vector<StatisticsPart> from_rows(std::span<const double> rows, std::size_t width,
                                      std::size_t modules) {
  std::vector<StatisticsPart> parts;
  for (; rows.size() >= width; rows = rows.subspan(width)) {
    if (rows[0] == kNoPart) continue;
    StatisticsPart part{
        .micro_batch = static_cast<std::uint64_t>(rows[0]), .runs = {}, .values = {}};
    for (const double runs : rows.subspan(1, modules)) {
      part.runs.push_back(static_cast<std::uint32_t>(runs));
    }
    const auto values = rows.subspan(1 + modules, width - 1 - modules);
    part.values.assign(values.begin(), values.end());
    parts.push_back(std::move(part));
  }
  return parts;
}

template <class Module>
void BatchStatistics::add(torch::nn::Module& module) {
  auto* found = dynamic_cast<Module*>(&module);
  if (found == nullptr || !found->running_mean.defined()) return;
  Norm norm;
  norm.module = found;
  norm.mean = found->running_mean;
  norm.variance = found->running_var;
  norm.tracked = found->num_batches_tracked;
  norm.momentum = [found]() -> std::optional<double> { return found->options.momentum(); };
  // Only torch's BatchNorms count their runs in C++.
  norm.counts = std::is_same_v<decltype(found->options), torch::nn::BatchNormOptions>;
  norms_.push_back(std::move(norm));
}

BatchStatistics::BatchStatistics(torch::nn::Module& model) {
  std::vector<torch::nn::Module*> found{&model};
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (std::ranges::find(found, module.get()) == found.end()) {
      found.push_back(module.get());
    }
  }
  for (torch::nn::Module* module : found) {
    add<torch::nn::BatchNorm1dImpl>(*module);
    add<torch::nn::BatchNorm2dImpl>(*module);
    add<torch::nn::BatchNorm3dImpl>(*module);
    add<torch::nn::InstanceNorm1dImpl>(*module);
    add<torch::nn::InstanceNorm2dImpl>(*module);
    add<torch::nn::InstanceNorm3dImpl>(*module);
  }
}

std::vector<at::Tensor> BatchStatistics::buffers() const {
  std::vector<at::Tensor> all;
  for (const Norm& norm : norms_) {
    all.insert(all.end(), {norm.mean, norm.variance});
    if (norm.tracked.defined()) all.push_back(norm.tracked);
  }
  return all;
}

std::vector<double> BatchStatistics::values() const {
  std::vector<double> all;
  for (const Norm& norm : norms_) {
    append(all, norm.mean);
    append(all, norm.variance);
  }
  return all;
}

void BatchStatistics::write(std::span<const double> values) {
  const torch::NoGradGuard no_grad;
  for (const Norm& norm : norms_) {
    values = write_one(norm.mean, values);
    values = write_one(norm.variance, values);
  }
}

// A module switched to evaluation within a step reads its values at the step's start.
void BatchStatistics::restore(std::size_t index) {
  const torch::NoGradGuard no_grad;
  std::span<const double> values(start_);
  for (std::size_t i = 0; i < index; ++i) values = values.subspan(modules_[i].values);
  const Norm& norm = norms_[index];
  write_one(norm.variance, write_one(norm.mean, values));
  if (norm.counts) norm.tracked.fill_(start_tracked_[index]);
}

void BatchStatistics::begin_step() {
  parts_.clear();
  modules_.clear();
  start_tracked_.clear();
  open_.reset();
  start_ = values();
  for (const Norm& norm : norms_) {
    start_tracked_.push_back(count_of(norm.tracked));
    modules_.push_back({.values = static_cast<std::size_t>(2 * norm.mean.numel()),
                        .momentum = norm.momentum(),
                        .tracked = static_cast<double>(start_tracked_.back()),
                        .in_fp32 = norm.mean.scalar_type() != at::kDouble});
  }
}

void BatchStatistics::begin_micro_batch(std::uint64_t micro_batch) {
  const torch::NoGradGuard no_grad;
  open_ = micro_batch;
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    Norm& norm = norms_[i];
    norm.is_training = norm.module->is_training();
    if (!norm.is_training) {
      restore(i);
      continue;
    }
    norm.mean.zero_();
    norm.variance.zero_();
    if (norm.counts) {
      // A plain average weighs a micro-batch by the number of earlier ones on all ranks. Other
      // modules count from 0, which also suits a counter of few bits (in a model that was cast).
      const bool is_average = !modules_[i].momentum;
      norm.mark = is_average ? start_tracked_[i] + static_cast<std::int64_t>(micro_batch) : 0;
      norm.tracked.fill_(norm.mark);
    } else {
      norm.mark = static_cast<std::int64_t>(norm.mean._version());
    }
  }
}

std::uint32_t BatchStatistics::runs_of(const Norm& norm) const {
  if (!norm.is_training) return 0;
  if (norm.counts) return static_cast<std::uint32_t>(count_of(norm.tracked) - norm.mark);
  return static_cast<std::int64_t>(norm.mean._version()) == norm.mark ? 0 : 1;
}

void BatchStatistics::end_micro_batch() {
  if (!open_) return;
  StatisticsPart part{.micro_batch = *open_, .runs = {}, .values = values()};
  for (const Norm& norm : norms_) part.runs.push_back(runs_of(norm));
  parts_.push_back(std::move(part));
  open_.reset();
}

Result<std::vector<StatisticsPart>> BatchStatistics::gather(transport::Communicator& ranks,
                                                            const transport::WaitPolicy& wait,
                                                            const std::function<void()>& pump,
                                                            std::uint64_t most_on_a_rank) {
  if (ranks.size() == 1) return parts_;
  const std::size_t width = row_width(modules_);
  const auto rows = static_cast<std::size_t>(most_on_a_rank);
  if (parts_.size() > rows) {
    return internal_error("running statistics: expected " + std::to_string(rows) +
                          " micro-batches at most, found " + std::to_string(parts_.size()));
  }
  const std::vector<double> mine = to_rows(parts_, rows, width);
  std::vector<double> all(mine.size() * static_cast<std::size_t>(ranks.size()));
  auto request = ranks.start_all_gather(std::as_bytes(std::span(mine)),
                                        std::as_writable_bytes(std::span(all)));
  if (!request.ok()) return request.status();
  if (Status waited = transport::wait_with(ranks, *request, wait, pump); !waited.ok()) {
    return waited;
  }
  return from_rows(all, width, modules_.size());
}

void BatchStatistics::count_runs(std::span<const StatisticsPart> parts) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    if (!norms_[i].counts) continue;
    std::int64_t count = start_tracked_[i];
    for (const StatisticsPart& part : parts) count += part.runs[i];
    norms_[i].tracked.fill_(count);
  }
}

Status BatchStatistics::fold(transport::Communicator& ranks, const transport::WaitPolicy& wait,
                             const std::function<void()>& pump, std::uint64_t micro_batches,
                             std::uint64_t most_on_a_rank) {
  if (empty()) return ok_status();
  auto parts = gather(ranks, wait, pump, most_on_a_rank);
  Status status = parts.status();
  if (status.ok() && parts->size() != micro_batches) {
    status = internal_error("running statistics: expected statistics of " +
                            std::to_string(micro_batches) + " micro-batches, found " +
                            std::to_string(parts->size()));
  }
  if (status.ok()) {
    auto folded = fold_statistics(modules_, start_, *parts);
    status = folded.status();
    if (status.ok()) {
      write(*folded);
      count_runs(*parts);
      parts_.clear();
      return status;
    }
  }
  put_back();
  return status;
}

void BatchStatistics::put_back() {
  for (std::size_t i = 0; i < modules_.size(); ++i) restore(i);
  parts_.clear();
  open_.reset();
}

}  // namespace cox::detail
