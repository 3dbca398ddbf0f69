#include "sdk/src/session/end_states.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

// Left is the sum of one rank's end states, in a form that ranks can gather. `is_of_steps` is 0 if
// code other than steps wrote a state; `is_finite` is 0 if a state is not finite.
struct Left {
  std::uint64_t bits = 0;
  std::uint64_t is_of_steps = 1;
  std::uint64_t is_finite = 1;
};

Left left_by(const std::vector<EndState>& states) {
  Left left;
  Fnv1a64 hash;
  for (const EndState& state : states) {
    hash.add(state.bits);
    if (!state.is_of_steps) left.is_of_steps = 0;
    if (!state.not_finite.empty()) left.is_finite = 0;
  }
  left.bits = hash.value();
  return left;
}

std::string difference_in(const std::vector<Left>& all, Leaves leaves) {
  const auto counts = [leaves](const Left& left) {
    return leaves == Leaves::save || left.is_of_steps != 0;
  };
  const auto first = std::ranges::find_if(all, counts);
  if (first == all.end()) return {};
  std::vector<std::uint64_t> bits(all.size(), first->bits);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (counts(all[rank])) bits[rank] = all[rank].bits;
  }
  const std::string ranks = ranks_that_differ(bits);
  if (ranks.empty()) return {};
  return concat("the weights of rank ", ranks, " differ from those of rank ", first - all.begin());
}

std::string first_not_finite(const Membership& job, const std::vector<EndState>& states) {
  std::string mine;
  for (const EndState& state : states) {
    if (mine.empty() && !state.not_finite.empty()) mine = state.not_finite + " is not finite";
  }
  return first_text(job.all(), mine);
}

}  // namespace

EndFinding compare_end_states(const Membership& job, const ActuatorList& actuators, Leaves leaves) {
  const std::vector<EndState> states = actuators.end_states();
  if (states.empty()) return {};
  const Left mine = left_by(states);
  if (leaves == Leaves::end && mine.is_of_steps == 0 && job.world_size() > 1) {
    job.log().info(
        "weights changed after the last step, so the end of the job does not compare them between "
        "ranks; call Session::finish() right after the loop to compare them");
  }
  const auto all = require(gather_values(job.all(), mine, job.world().between_polls()));
  EndFinding finding{.different = difference_in(all, leaves), .not_finite = {}};
  const bool is_finite = std::ranges::all_of(all, [](const Left& l) { return l.is_finite != 0; });
  if (!is_finite) finding.not_finite = first_not_finite(job, states);
  return finding;
}

}  // namespace cox::detail
