#include "sdk/src/parallel/batch_statistics.h"

#include <torch/torch.h>

#include <algorithm>

namespace cox::detail {
namespace {

void append(std::vector<double>& to, const at::Tensor& tensor) {
  const at::Tensor wide = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* first = wide.const_data_ptr<double>();
  to.insert(to.end(), first, first + wide.numel());
}

// Copies the values that belong to `tensor` into it; returns the rest.
std::span<const double> write_one(const at::Tensor& tensor, std::span<const double> values) {
  const auto size = static_cast<std::size_t>(tensor.numel());
  auto* first = const_cast<double*>(values.data());  // from_blob knows no const; it is read only
  tensor.copy_(at::from_blob(first, tensor.sizes(), at::kDouble));
  return values.subspan(size);
}

std::int64_t count_of(const at::Tensor& tracked) {
  return tracked.defined() ? tracked.item<std::int64_t>() : 0;
}

}  // namespace

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
    if (std::find(found.begin(), found.end(), module.get()) == found.end()) {
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

// A module that is switched to evaluation within a step reads what it had at the step's start.
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
      // A plain average weighs a micro-batch by how many there were before it, on all ranks. Others
      // count from 0, which a counter in few bits can do as well (a model that was cast has one).
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
    status =
        internal_error("running statistics: expected those of " + std::to_string(micro_batches) +
                       " micro-batches, found " + std::to_string(parts->size()));
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
