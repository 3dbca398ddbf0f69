#include "sdk/src/optim/schedules.h"

#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/src/libtorch/plateau.h"

namespace cox::detail {
namespace {

using Plateau = torch::optim::ReduceLROnPlateauScheduler;

NamedTensor count(const char* name, std::int64_t value) {
  return {name, at::scalar_tensor(value, at::kLong)};
}

const at::Tensor* scalar(std::span<const NamedTensor> state, std::string_view name,
                         at::ScalarType type) {
  for (const NamedTensor& each : state) {
    if (each.name == name && each.tensor.scalar_type() == type && each.tensor.numel() == 1)
      return &each.tensor;
  }
  return nullptr;
}

// Reads a count into `value`; an error changes nothing.
Status read_count(std::span<const NamedTensor> state, const char* name, std::int64_t& value) {
  const at::Tensor* saved = scalar(state, name, at::kLong);
  const std::int64_t found = saved == nullptr ? -1 : saved->item<std::int64_t>();
  if (found < 0 || found > std::numeric_limits<int>::max())
    return invalid_argument("expected \"", name, "\" as one number of I64, from 0 to 2^31 - 1");
  value = found;
  return ok_status();
}

Status load_plateau(Plateau& schedule, std::span<const NamedTensor> state) {
  const at::Tensor* best = scalar(state, "best", at::kFloat);
  if (best == nullptr) return invalid_argument("expected \"best\" as one number of F32");
  std::int64_t last = 0;
  std::int64_t bad = 0;
  std::int64_t cooldown = 0;
  Status read = read_count(state, "last_epoch", last);
  if (read.ok()) read = read_count(state, "bad_epochs", bad);
  if (read.ok()) read = read_count(state, "cooldown", cooldown);
  if (!read.ok()) return read;
  const PlateauCounters counters = counters_of(schedule);
  counters.best = best->item<float>();
  counters.last_epoch = static_cast<int>(last);
  counters.bad_epochs = static_cast<int>(bad);
  counters.cooldown = static_cast<int>(cooldown);
  return ok_status();
}

}  // namespace

TrainingPart part_of(torch::optim::LRScheduler& schedule) {
  return {
      .state = [&schedule] { return std::vector<NamedTensor>{count("steps", steps_of(schedule))}; },
      .load =
          [&schedule](std::span<const NamedTensor> state) {
            std::int64_t steps = 0;
            Status read = read_count(state, "steps", steps);
            if (read.ok()) steps_of(schedule) = static_cast<unsigned>(steps);
            return read;
          }};
}

TrainingPart part_of(Plateau& schedule) {
  return {
      .state =
          [&schedule] {
            const PlateauCounters counters = counters_of(schedule);
            return std::vector<NamedTensor>{{"best", at::scalar_tensor(counters.best, at::kFloat)},
                                            count("last_epoch", counters.last_epoch),
                                            count("bad_epochs", counters.bad_epochs),
                                            count("cooldown", counters.cooldown)};
          },
      .load = [&schedule](
                  std::span<const NamedTensor> state) { return load_plateau(schedule, state); }};
}

}  // namespace cox::detail
