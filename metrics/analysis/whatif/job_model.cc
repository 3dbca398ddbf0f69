#include "metrics/analysis/whatif/job_model.h"

#include <algorithm>
#include <utility>

namespace cox::diagnosis {
namespace {

constexpr std::uint32_t kNoGroup = ~0u;

// Adds a group for each operation without one. Returns the group of each operation.
std::vector<std::uint32_t> complete(std::vector<OperationGroup>& groups, std::size_t operations) {
  std::vector<std::uint32_t> group_of(operations, kNoGroup);
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    for (const std::uint32_t member : groups[g].members) group_of[member] = g;
  }
  for (std::uint32_t operation = 0; operation < operations; ++operation) {
    if (group_of[operation] != kNoGroup) continue;
    group_of[operation] = static_cast<std::uint32_t>(groups.size());
    groups.push_back({{operation}, OperationGroup::Reach::dp_rank});
  }
  return group_of;
}

// One step, with the times of each operation side by side for all lanes.
class Step {
 public:
  Step(const JobModel& model, std::size_t lanes)
      : model_(model), lanes_(lanes), end_(model.operations.size() * lanes), start_(lanes) {}

  double seconds(std::span<const double> own) {
    double latest = 0;
    for (const OperationGroup& group : model_.graph.groups) {
      std::ranges::fill(start_, 0.0);
      for (const std::uint32_t member : group.members) wait_for_inputs(member);
      if (group.reach == OperationGroup::Reach::all_dp_ranks)
        std::ranges::fill(start_, *std::ranges::max_element(start_));
      for (const std::uint32_t member : group.members)
        latest = std::max(latest, finish(member, own));
    }
    return latest;
  }

 private:
  void wait_for_inputs(std::uint32_t member) {
    for (const std::uint32_t input : model_.graph.depends_on[member]) {
      const double* end = &end_[input * lanes_];
      for (std::size_t d = 0; d < lanes_; ++d) start_[d] = std::max(start_[d], end[d]);
    }
  }

  double finish(std::uint32_t member, std::span<const double> own) {
    double latest = 0;
    double* end = &end_[member * lanes_];
    const double* took = &own[member * lanes_];
    for (std::size_t d = 0; d < lanes_; ++d) {
      end[d] = start_[d] + took[d];
      latest = std::max(latest, end[d]);
    }
    return latest;
  }

  const JobModel& model_;
  std::size_t lanes_;
  std::vector<double> end_;
  std::vector<double> start_;
};

}  // namespace

Result<OperationGraph> ordered(std::vector<OperationGroup> groups,
                               std::vector<std::vector<std::uint32_t>> depends_on) {
  const std::vector<std::uint32_t> group_of = complete(groups, depends_on.size());
  std::vector<std::vector<std::uint32_t>> followers(groups.size());
  std::vector<std::uint32_t> open(groups.size());  // dependencies not yet in the order
  for (std::uint32_t operation = 0; operation < depends_on.size(); ++operation) {
    for (const std::uint32_t input : depends_on[operation]) {
      followers[group_of[input]].push_back(group_of[operation]);
      ++open[group_of[operation]];
    }
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    if (open[g] == 0) order.push_back(g);
  }
  for (std::size_t next = 0; next < order.size(); ++next) {
    for (const std::uint32_t follower : followers[order[next]]) {
      if (--open[follower] == 0) order.push_back(follower);
    }
  }
  if (order.size() < groups.size())
    return invalid_argument("expected operations in an order that a step can have, found ",
                            groups.size() - order.size(), " groups that wait for each other");
  OperationGraph graph;
  for (const std::uint32_t g : order) graph.groups.push_back(std::move(groups[g]));
  graph.depends_on = std::move(depends_on);
  return graph;
}

std::vector<double> simulate(const JobModel& model, std::span<const double> own,
                             std::size_t lanes) {
  const std::size_t step_size = model.operations.size() * lanes;
  std::vector<double> seconds;
  seconds.reserve(model.steps.size());
  Step step(model, lanes);
  for (std::size_t s = 0; s < model.steps.size(); ++s)
    seconds.push_back(step.seconds(own.subspan(s * step_size, step_size)));
  return seconds;
}

}  // namespace cox::diagnosis
