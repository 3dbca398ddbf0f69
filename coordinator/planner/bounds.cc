#include "coordinator/planner/bounds.h"

#include <cmath>

namespace cox::planner {
namespace {

struct Choice {
  std::int64_t kept = 0;
  std::int64_t added = 0;
};

// Going from one choice of a stage to the next cheaper one in bytes.
struct Saving {
  std::size_t stage = 0;
  std::int64_t bytes = 0;
  std::int64_t added = 0;
  double price() const { return static_cast<double>(added) / static_cast<double>(bytes); }
};

// Returns the choices on a stage's lower hull, by falling kept bytes.
std::vector<Choice> hull_of(const Stage& stage) {
  std::vector<Choice> all;
  for (const StageOption& o : stage.options) {
    if (o.allowed) all.push_back({o.kept_bytes, o.added_us});
  }
  std::ranges::sort(all, [](const Choice& a, const Choice& b) {
    return a.added != b.added ? a.added < b.added : a.kept < b.kept;
  });
  std::vector<Choice> hull;
  for (const Choice& c : all) {
    if (!hull.empty() && c.kept >= hull.back().kept) continue;
    const auto price = [](const Choice& from, const Choice& to) {
      return Saving{0, from.kept - to.kept, to.added - from.added}.price();
    };
    while (hull.size() > 1 &&
           price(hull[hull.size() - 2], c) <= price(hull[hull.size() - 2], hull.back()))
      hull.pop_back();
    hull.push_back(c);
  }
  return hull;
}

// Returns whether `a` can replace `b` in every plan. With copies, added times must be equal: added
// time lets copies end before more of the backward has run.
bool replaces(const StageOption& a, const StageOption& b, const StepTables& tables) {
  if (a.is_copied() || b.is_copied()) return false;
  if (tables.is_tier_scarce && a.stored_bytes > b.stored_bytes) return false;
  return a.kept_bytes <= b.kept_bytes && a.forward_high_bytes <= b.forward_high_bytes &&
         a.backward_high_bytes <= b.backward_high_bytes &&
         (tables.can_offload ? a.added_us == b.added_us : a.added_us <= b.added_us);
}

std::vector<std::uint8_t> choices_of(const Stage& stage, const StepTables& tables) {
  std::vector<std::uint8_t> choices;
  const auto counts = [&](std::size_t action) {
    return tables.is_recompute_scarce && is_recompute(static_cast<MemoryAction>(action));
  };
  const auto beats = [&](std::size_t a, std::size_t b) {
    return counts(a) <= counts(b) && replaces(stage.options[a], stage.options[b], tables);
  };
  for (const MemoryAction action : kActionsInOrder) {
    const auto own = static_cast<std::uint8_t>(action);
    if (!stage.options[own].allowed) continue;
    if (std::ranges::any_of(choices, [&](std::uint8_t other) { return beats(other, own); }))
      continue;
    std::erase_if(choices, [&](std::uint8_t other) { return beats(own, other); });
    choices.push_back(own);
  }
  return choices;
}

std::int64_t least_high(const Stage& stage) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const StageOption& o : stage.options) {
    if (o.allowed) least = std::min(least, std::max(o.forward_high_bytes, o.backward_high_bytes));
  }
  return least;
}

}  // namespace

StepTables::StepTables(const MemoryProblem& given) : problem(given) {
  const std::size_t n = problem.stages.size();
  starts_us.assign(n + 1, 0);
  copies_us.assign(n, 0);
  backward_after.assign(n, 0);
  added_after.assign(n, 0);
  std::int64_t copied = 0;
  std::int32_t recomputable = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Stage& stage = problem.stages[i];
    starts_us[i + 1] = starts_us[i] + stage.forward_us;
    for (const MemoryAction a : kActionsInOrder) {
      if (is_recompute(a) && stage.option(a).allowed) {
        ++recomputable;
        break;
      }
    }
    const StageOption& offload = stage.options[kOffload];
    if (!offload.allowed) continue;
    copied += offload.copied_bytes + offload.stored_bytes;
    if (!offload.is_copied()) continue;
    copies_us[i] = copy_us(offload.copied_bytes, problem.copy_bytes_per_ms);
    can_offload = true;
  }
  constexpr double kMost = 0x1p60;
  is_rate_exact = static_cast<double>(problem.copy_bytes_per_ms) *
                      (static_cast<double>(starts_us[n]) / 1000 + 1) <
                  kMost;
  for (std::size_t i = n; i-- > 1;) {
    const Stage& stage = problem.stages[i];
    std::int64_t most = 0;
    for (std::size_t a = 0; a < kActions; ++a) {
      if (stage.options[a].allowed && !stage.options[a].is_copied())
        most = std::max(most, stage.options[a].added_us);
    }
    backward_after[i - 1] = backward_after[i] + stage.backward_us;
    added_after[i - 1] = added_after[i] + most;
  }
  is_tier_scarce = problem.tier_bytes.value_or(copied) < copied;
  is_recompute_scarce = problem.most_recomputed.value_or(recomputable) < recomputable;
  for (const Stage& stage : problem.stages) choices.push_back(choices_of(stage, *this));
}

std::int64_t StepTables::work_us(std::size_t stage, std::size_t action) const {
  const Stage& s = problem.stages[stage];
  return s.backward_us + s.options[action].added_us;
}

std::int64_t StepTables::wait_us(std::size_t stage, std::size_t action_behind) const {
  return std::max<std::int64_t>(0, copies_us[stage] - work_us(stage + 1, action_behind));
}

std::int64_t StepTables::carried_bytes(std::size_t stage, Round round) const {
  const std::int64_t whole_ms = starts_us[stage] / 1000;
  const std::int64_t rest = starts_us[stage] % 1000 * problem.copy_bytes_per_ms;
  return whole_ms * problem.copy_bytes_per_ms + (rest + (round == Round::up ? 999 : 0)) / 1000;
}

CompletionBound::CompletionBound(const StepTables& tables, std::int64_t budget_bytes,
                                 std::size_t most_treads)
    : tables_(tables),
      room_bytes_(budget_bytes - tables.problem.base_bytes),
      most_treads_(most_treads) {
  const std::size_t n = tables.problem.stages.size();
  has_rate_ = tables.can_offload && tables.is_rate_exact;
  stairs_.resize(index(n + 1, Before::resident, Easing::fast_engine));
  for (std::size_t i = index(n, Before::resident, Easing::fast_engine); i < stairs_.size(); ++i)
    stairs_[i] = {{kNever, 0}};
  for (std::size_t i = n; i-- > 0;) {
    build_stage(i, Before::resident);
    if (i > 0 && tables.problem.stages[i - 1].options[kOffload].allowed)
      build_stage(i, Before::offloaded);
  }
}

std::size_t CompletionBound::index(std::size_t stage, Before before, Easing easing) {
  return (2 * stage + static_cast<std::size_t>(before)) * kEasings +
         static_cast<std::size_t>(easing);
}

void CompletionBound::build_stage(std::size_t stage, Before before) {
  build(stage, before, Easing::fast_engine_no_offload);
  if (!tables_.can_offload) return;
  build(stage, before, Easing::fast_engine);
  if (has_rate_) build(stage, before, Easing::forward_only);
}

// Merges the next stage's staircases, each shifted by one action, in order of added time. A tread
// is kept if it is the highest so far.
void CompletionBound::build(std::size_t stage, Before before, Easing easing) {
  std::array<Lane, kActions> lanes;
  std::size_t used = 0;
  for (const std::size_t a : tables_.choices[stage]) {
    const StageOption& option = tables_.problem.stages[stage].options[a];
    if (option.is_copied() && easing == Easing::fast_engine_no_offload) continue;
    lanes[used++] = lane(stage, a, before, easing);
  }
  Stairs& out = stairs_[index(stage, before, easing)];
  std::int64_t highest = -1;
  while (true) {
    Lane* first = nullptr;
    for (std::size_t l = 0; l < used; ++l) {
      Lane& lane = lanes[l];
      while (lane.at != lane.end && lane.most() <= highest && !lane.is_full(highest)) ++lane.at;
      if (lane.at == lane.end || lane.is_full(highest)) continue;
      if (!first || lane.added() < first->added() ||
          (lane.added() == first->added() && lane.most() > first->most()))
        first = &lane;
    }
    if (!first) break;
    highest = first->most();
    out.push_back({highest, first->added()});
  }
  if (out.size() > most_treads_) coarsen(out);
}

std::int64_t CompletionBound::room(std::size_t stage, std::size_t action, Before before,
                                   Easing easing) const {
  const StageOption& option = tables_.problem.stages[stage].options[action];
  if (easing == Easing::forward_only)
    return room_bytes_ + tables_.carried_bytes(stage, Round::up) - option.forward_high_bytes;
  std::int64_t backward = option.backward_high_bytes;
  if (before == Before::offloaded)
    backward += tables_.problem.stages[stage - 1].options[kOffload].copied_bytes;
  return room_bytes_ - std::max(option.forward_high_bytes, backward);
}

CompletionBound::Lane CompletionBound::lane(std::size_t stage, std::size_t action, Before before,
                                            Easing easing) const {
  const StageOption& option = tables_.problem.stages[stage].options[action];
  const Before next = option.is_copied() ? Before::offloaded : Before::resident;
  const Stairs& behind = stairs_[index(stage + 1, next, easing)];
  Lane lane{behind.data(), behind.data() + behind.size(), room(stage, action, before, easing),
            option.kept_bytes, option.added_us};
  if (easing == Easing::forward_only) lane.bytes += option.copied_bytes;
  if (before == Before::offloaded) lane.added_us += tables_.wait_us(stage - 1, action);
  return lane;
}

// Merges two neighbours into one tread that is at least as easy to reach.
void CompletionBound::coarsen(Stairs& all) {
  is_whole_ = false;
  Stairs fewer;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    const std::size_t last = std::min(i + 1, all.size() - 1);
    fewer.push_back({all[last].most_kept, all[i].added_us});
  }
  all = std::move(fewer);
}

std::int64_t CompletionBound::look(std::size_t stage, Before before, Easing easing,
                                   std::int64_t bytes) const {
  const Stairs& all = stairs_[index(stage, before, easing)];
  const auto found = std::lower_bound(
      all.begin(), all.end(), bytes,
      [](const Tread& tread, std::int64_t kept) { return tread.most_kept < kept; });
  return found == all.end() ? kNever : found->added_us;
}

std::int64_t CompletionBound::added_us(std::size_t stage, Before before, Further further,
                                       std::int64_t kept_bytes, std::int64_t leaving_bytes) const {
  if (further == Further::none)
    return look(stage, before, Easing::fast_engine_no_offload, kept_bytes);
  const std::int64_t most = look(stage, before, Easing::fast_engine, kept_bytes);
  if (!has_rate_ || most >= kNever) return most;
  const std::int64_t flow = kept_bytes + leaving_bytes + tables_.carried_bytes(stage, Round::down);
  return std::max(most, look(stage, before, Easing::forward_only, flow));
}

LinearBound::LinearBound(const MemoryProblem& problem, std::size_t places) {
  const std::size_t n = problem.stages.size();
  std::vector<Saving> savings;
  std::vector<Choice> fastest(n + 1);  // sums before each stage
  for (std::size_t i = 0; i < n; ++i) {
    const std::vector<Choice> hull = hull_of(problem.stages[i]);
    fastest[i + 1] = {fastest[i].kept + hull[0].kept, fastest[i].added + hull[0].added};
    for (std::size_t c = 1; c < hull.size(); ++c)
      savings.push_back({i, hull[c - 1].kept - hull[c].kept, hull[c].added - hull[c - 1].added});
  }
  std::ranges::sort(savings, [](const Saving& a, const Saving& b) {
    return a.price() != b.price() ? a.price() < b.price() : a.stage < b.stage;
  });
  places = std::min(places, n);
  for (std::size_t p = 1; p <= places; ++p) {
    const std::size_t place = n * p / places - 1;
    std::int64_t peak =
        problem.base_bytes + fastest[place].kept + least_high(problem.stages[place]);
    double added = static_cast<double>(fastest[n].added);
    std::vector<Corner> curve = {{peak, added}};
    for (const Saving& s : savings) {
      if (s.stage >= place) continue;
      peak -= s.bytes;
      added += static_cast<double>(s.added);
      curve.push_back({peak, added});
    }
    std::ranges::reverse(curve);
    curves_.push_back(std::move(curve));
  }
}

std::int64_t LinearBound::added_us(std::int64_t budget_bytes) const {
  double most = 0;
  for (const std::vector<Corner>& curve : curves_) {
    const auto above = std::upper_bound(
        curve.begin(), curve.end(), budget_bytes,
        [](std::int64_t budget, const Corner& c) { return budget < c.peak_bytes; });
    if (above == curve.begin() || above == curve.end()) {
      most = std::max(most, above == curve.end() ? curve.back().added_us : curve.front().added_us);
      continue;
    }
    const Corner& low = *(above - 1);
    const double part = static_cast<double>(budget_bytes - low.peak_bytes) /
                        static_cast<double>(above->peak_bytes - low.peak_bytes);
    most = std::max(most, low.added_us + part * (above->added_us - low.added_us));
  }
  return static_cast<std::int64_t>(std::floor(most));
}

}  // namespace cox::planner
