#include "sdk/src/libtorch/plateau.h"

#include <torch/torch.h>

namespace cox::detail {
namespace {

using Plateau = torch::optim::ReduceLROnPlateauScheduler;

struct Counted : torch::optim::LRScheduler {
  static unsigned& of(torch::optim::LRScheduler& schedule) {
    return schedule.*(&Counted::step_count_);
  }
};

// An explicit instantiation may name private members (C++20, 13.9.2). The friend function that it
// defines returns the member.
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

}  // namespace

PlateauCounters counters_of(Plateau& schedule) {
  return {schedule.*member_of(Best{}), schedule.*member_of(LastEpoch{}),
          schedule.*member_of(BadEpochs{}), schedule.*member_of(Cooldown{})};
}

unsigned& steps_of(torch::optim::LRScheduler& schedule) {
  return Counted::of(schedule);
}

}  // namespace cox::detail
