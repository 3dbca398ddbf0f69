#include "sdk/src/optim/schedules.h"

#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace cox::detail {
namespace {

using Plateau = torch::optim::ReduceLROnPlateauScheduler;

struct Counted : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& schedule) {
    return schedule.*(&Counted::step_count_);
  }
};

// torch has no functions for the state of a plateau's schedule. An explicit instantiation may name
// private members (C++20, 13.9.2), and the friend that it defines gives one to us.
template <class Tag, typename Tag::Pointer Member>
struct Opened {
  friend typename Tag::Pointer member_of(Tag /*tag*/) { return Member; }
};
struct Best {
  using Pointer = float Plateau::*;
  friend Pointer member_of(Best);
};
struct LastEpoch {
  using Pointer = int Plateau::*;
  friend Pointer member_of(LastEpoch);
};
struct BadEpochs {
  using Pointer = int Plateau::*;
  friend Pointer member_of(BadEpochs);
};
struct Cooldown {
  using Pointer = int Plateau::*;
  friend Pointer member_of(Cooldown);
};
template struct Opened<Best, &Plateau::best>;
template struct Opened<LastEpoch, &Plateau::last_epoch>;
template struct Opened<BadEpochs, &Plateau::num_bad_epochs>;
template struct Opened<Cooldown, &Plateau::cooldown_counter>;

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

// Reads a count into `value`; nothing is changed where that fails.
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
  schedule.*member_of(Best{}) = best->item<float>();
  schedule.*member_of(LastEpoch{}) = static_cast<int>(last);
  schedule.*member_of(BadEpochs{}) = static_cast<int>(bad);
  schedule.*member_of(Cooldown{}) = static_cast<int>(cooldown);
  return ok_status();
}

}  // namespace

TrainingPart part_of(torch::optim::LRScheduler& schedule) {
  return {
      .state =
          [&schedule] { return std::vector<NamedTensor>{count("steps", Counted::of(schedule))}; },
      .load =
          [&schedule](std::span<const NamedTensor> state) {
            std::int64_t steps = 0;
            Status read = read_count(state, "steps", steps);
            if (read.ok()) Counted::of(schedule) = static_cast<unsigned>(steps);
            return read;
          }};
}

TrainingPart part_of(Plateau& schedule) {
  return {
      .state =
          [&schedule] {
            return std::vector<NamedTensor>{
                {"best", at::scalar_tensor(schedule.*member_of(Best{}), at::kFloat)},
                count("last_epoch", schedule.*member_of(LastEpoch{})),
                count("bad_epochs", schedule.*member_of(BadEpochs{})),
                count("cooldown", schedule.*member_of(Cooldown{}))};
          },
      .load = [&schedule](
                  std::span<const NamedTensor> state) { return load_plateau(schedule, state); }};
}

}  // namespace cox::detail
