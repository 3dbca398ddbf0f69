#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/analysis/findings/rule_input.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kMebibyte = 1024 * 1024;
constexpr double kSoon = 20;  // times the steps of the view

std::string bytes_of(double bytes) {
  return bytes_text(static_cast<std::uint64_t>(std::max(0.0, bytes)));
}

// ---- The allocator.

struct Unused {
  double share = 0;               // unused / reserved bytes, mean of the steps
  double peak = 0;                // bytes in tensors
  std::optional<double> split{};  // share in unused parts of segments in use, if recorded
};

std::optional<Unused> much_unused(const RuleInput& input, std::size_t r) {
  const std::vector<double> alloc = input.memory(r, "alloc");
  const std::vector<double> reserved = input.memory(r, "reserved");
  const std::vector<double> split = input.memory(r, "inactive_split");
  std::vector<double> shares;
  std::vector<double> split_shares;
  double peak = 0;
  for (std::size_t s = 0; s < alloc.size(); ++s) {
    if (is_absent(alloc[s]) || !(reserved[s] > 0)) continue;
    shares.push_back((reserved[s] - alloc[s]) / reserved[s]);
    if (!is_absent(split[s])) split_shares.push_back(split[s] / reserved[s]);
    peak = std::max(peak, alloc[s]);
  }
  const double share = mean_of(shares);
  if (shares.size() < kLeastSteps || peak < 64 * kMebibyte || share < 0.20) return std::nullopt;
  Unused out{share, peak};
  if (!split_shares.empty()) out.split = mean_of(split_shares);
  return out;
}

std::string pieces_text(const Unused& unused) {
  return unused.split ? fmt::format(", {} in unused pieces beside tensors", percents(*unused.split))
                      : "";
}

void fragmented(const RuleInput& input, Findings& out) {
  const auto found = concerned<Unused>(
      input, much_unused, [](const Unused& a, const Unused& b) { return a.share > b.share; });
  if (found.ranks.empty()) return;
  const double share = found.of_worst.share;
  Finding f{"MEMORY.FRAGMENTATION", share >= 0.40 ? Severity::medium : Severity::low,
            "Much memory is reserved and not used"};
  f.detail = fmt::format(
      "The allocator of {} has on average {} of its memory in no tensor{}; tensors take {} at "
      "most.",
      found.worst_named(input), percents(share), pieces_text(found.of_worst),
      bytes_of(found.of_worst.peak));
  f.suggestion = "Use expandable segments, and avoid shapes that change from step to step.";
  f.evidence = {{"unused_share", share}};
  if (found.of_worst.split) f.evidence.push_back({"split_share", *found.of_worst.split});
  name_ranks(input, found.ranks, f);
  out.push_back(std::move(f));
}

struct Growth {
  double bytes_per_step = 0;
  double bytes = 0;                    // in all
  std::optional<double> steps_left{};  // until the rank runs out of memory, if a limit is known
};

std::optional<double> steps_left(const RuleInput& input, std::size_t r, double bytes_per_step) {
  const std::vector<double> headroom = present(input.own(r, "headroom"));
  if (headroom.empty() || bytes_per_step <= 0) return std::nullopt;
  return headroom.back() / bytes_per_step;
}

// A leak grows through the whole run; a step up at a new plan or batch size does not.
std::optional<Growth> leak_of(const RuleInput& input, std::size_t r) {
  const std::vector<double> alloc = present(input.memory(r, "alloc"));
  if (alloc.size() < 20) return std::nullopt;
  const EndMedians ends = end_medians(std::span<const double>(alloc));
  const double middle =
      median_of({alloc.begin() + static_cast<std::ptrdiff_t>(alloc.size() * 45 / 100),
                 alloc.begin() + static_cast<std::ptrdiff_t>(alloc.size() * 55 / 100 + 1)});
  const double total = ends.last - ends.first;
  const double slope = total / static_cast<double>(alloc.size() - 1);
  const double peak = *std::ranges::max_element(alloc);
  const bool is_steady = middle - ends.first > 0.25 * total && ends.last - middle > 0.25 * total;
  const bool is_large = (slope >= kMebibyte && total >= 0.01 * peak) || total >= 0.10 * peak;
  if (!is_steady || !is_large || total <= 0) return std::nullopt;
  return Growth{slope, total, steps_left(input, r, slope)};
}

// The rank that ends the run first, else the rank that grows most, is the worst.
bool is_worse_leak(const Growth& a, const Growth& b) {
  if (a.steps_left && b.steps_left) return *a.steps_left < *b.steps_left;
  if (a.steps_left.has_value() != b.steps_left.has_value()) return a.steps_left.has_value();
  return a.bytes_per_step > b.bytes_per_step;
}

void leaking(const RuleInput& input, Findings& out) {
  const auto found = concerned<Growth>(input, leak_of, is_worse_leak);
  if (found.ranks.empty()) return;
  const Growth& worst = found.of_worst;
  Finding f{"MEMORY.GROWTH", Severity::high, "Memory grows from step to step"};
  f.detail = fmt::format("Tensors of {} grow by {} a step, {} in all.", found.worst_named(input),
                         bytes_of(worst.bytes_per_step), bytes_of(worst.bytes));
  f.suggestion = "Search for tensors that are kept: losses summed with their graph, lists, caches.";
  f.evidence = {{"bytes_per_step", worst.bytes_per_step}, {"bytes", worst.bytes}};
  if (worst.steps_left) {
    f.detail +=
        fmt::format(" The free memory is used up in about {} steps.", fixed(*worst.steps_left, 0));
    f.evidence.push_back({"steps_left", *worst.steps_left});
    f.ends_run = *worst.steps_left < kSoon * static_cast<double>(input.view.size());
  }
  name_ranks(input, found.ranks, f);
  out.push_back(std::move(f));
}

// ---- The cost of the budget: blocks that recompute activations or wait for offloaded ones.

// Selects the steps to count: steps that only offload, or all that save activation memory.
enum class Saving : std::uint8_t { by_offload, in_any_way };

// Returns for each step whether the rank saved memory in this way. Time for saving memory without
// an offloaded block counts as recompute.
std::vector<bool> saves_in(const RuleInput& input, std::size_t r, Saving saving) {
  const std::vector<double> recomputed = input.own(r, "recomputed_blocks");
  const std::vector<double> offloaded = input.own(r, "offloaded_blocks");
  const std::vector<double> seconds = input.own(r, "recompute");
  std::vector<bool> out(input.view.size());
  for (std::size_t s = 0; s < out.size(); ++s) {
    // Absent values are NaN and compare as false.
    const bool only_offloads = offloaded[s] > 0 && !(recomputed[s] > 0);
    out[s] =
        only_offloads || (saving == Saving::in_any_way && (recomputed[s] > 0 || seconds[s] > 0));
  }
  return out;
}

// Returns the rank's seconds for saving memory in this way in each step; empty if the record has
// none.
std::vector<double> saving_seconds(const RuleInput& input, std::size_t r, Saving saving) {
  std::vector<double> seconds = input.view.recompute(r);
  if (seconds.empty()) return seconds;
  const std::vector<bool> saves = saves_in(input, r, saving);
  for (std::size_t s = 0; s < seconds.size(); ++s) {
    if (!saves[s]) seconds[s] = 0;
  }
  return seconds;
}

// A rank that saves memory in most steps.
struct Saved {
  std::size_t steps = 0;
  double seconds = 0;
};

std::size_t saving_steps(const RuleInput& input, std::size_t r, Saving saving) {
  return static_cast<std::size_t>(std::ranges::count(saves_in(input, r, saving), true));
}

std::optional<Saved> saved_often(const RuleInput& input, std::size_t r, Saving saving,
                                 std::size_t steps) {
  if (steps < std::max(kLeastSteps, input.view.size() / 2)) return std::nullopt;
  return Saved{steps, exact_sum(saving_seconds(input, r, saving))};
}

std::optional<Saved> offloads_often(const RuleInput& input, std::size_t r) {
  return saved_often(input, r, Saving::by_offload, saving_steps(input, r, Saving::by_offload));
}

// Returns nullopt for a rank that only offloads in more than half of these steps.
std::optional<Saved> recomputes_often(const RuleInput& input, std::size_t r) {
  const std::size_t steps = saving_steps(input, r, Saving::in_any_way);
  if (2 * saving_steps(input, r, Saving::by_offload) > steps) return std::nullopt;
  return saved_often(input, r, Saving::in_any_way, steps);
}

bool takes_longer(const Saved& a, const Saved& b) {
  return a.seconds > b.seconds;
}

// Returns how much shorter each step would be if these ranks saved no memory in this way.
StepSeconds price_of(const RuleInput& input, const Ranks& ranks, Saving saving) {
  std::vector<float> longest(input.view.size(), 0);
  for (std::size_t r = 0; r < input.view.ranks.size(); ++r) {
    const std::vector<float>& work = input.view.ranks[r].work;
    const std::vector<double> seconds =
        ranks.contains(r) ? saving_seconds(input, r, saving) : std::vector<double>();
    for (std::size_t s = 0; s < work.size(); ++s)
      longest[s] =
          std::max(longest[s], work[s] - (seconds.empty() ? 0 : static_cast<float>(seconds[s])));
  }
  StepSeconds saved;
  for (std::size_t s = 0; s < longest.size(); ++s)
    saved.push_back(static_cast<double>(input.view.longest_work[s] - longest[s]));
  return saved;
}

// The least free memory of a rank, and its largest peak. Missing if a step lacks a value.
struct Headroom {
  double least = 0;
  double peak = 0;

  double ratio() const { return least / peak; }
};

std::optional<Headroom> headroom_of(const RuleInput& input, std::size_t r) {
  const std::vector<double> headroom = input.own(r, "headroom");
  const std::vector<double> peaks = input.memory(r, "peak_alloc");
  Headroom out;
  for (std::size_t s = 0; s < headroom.size(); ++s) {
    if (is_absent(headroom[s]) || is_absent(peaks[s])) return std::nullopt;
    out.least = s == 0 ? headroom[s] : std::min(out.least, headroom[s]);
    out.peak = std::max(out.peak, peaks[s]);
  }
  if (headroom.size() < kLeastSteps || out.peak <= 0) return std::nullopt;
  return out;
}

// Considers only ranks that recompute in most steps.
std::optional<Headroom> needless_room(const RuleInput& input, std::size_t r) {
  if (!recomputes_often(input, r)) return std::nullopt;
  const auto memory = headroom_of(input, r);
  return memory && memory->ratio() >= 0.5 ? memory : std::nullopt;
}

std::optional<Headroom> little_room(const RuleInput& input, std::size_t r) {
  const auto memory = headroom_of(input, r);
  return memory && memory->ratio() < 0.03 ? memory : std::nullopt;
}

// Adds the ranks, and that the others wait for them.
void tell_ranks(const RuleInput& input, const Ranks& ranks, Finding& f) {
  name_ranks(input, ranks, f);
  if (ranks.size() < input.view.ranks.size() && *f.cost_seconds > 0)
    f.detail += " The other ranks wait for these ranks in every step.";
}

// The work that the budget causes in most steps, and whether it is needless.
struct TightBudget {
  Concerned<Saved> ranks;
  Concerned<Headroom> with_room;  // subset of `ranks`
  StepSeconds price;
  bool is_needless = false;

  const Ranks& told() const { return is_needless ? with_room.ranks : ranks.ranks; }
};

std::optional<TightBudget> tightness(const RuleInput& input) {
  TightBudget out;
  out.ranks = concerned<Saved>(input, recomputes_often, takes_longer);
  if (out.ranks.ranks.empty()) return std::nullopt;
  out.with_room = concerned<Headroom>(
      input, needless_room,
      [](const Headroom& a, const Headroom& b) { return a.ratio() > b.ratio(); });
  out.price = price_of(input, out.ranks.ranks, Saving::in_any_way);
  const bool is_dear = input.share(sum_of(out.price)) >= 0.05;
  if (!is_dear && out.with_room.ranks.empty()) return std::nullopt;
  // If only some ranks save needlessly, the price of all ranks comes first.
  out.is_needless = !is_dear || out.with_room.ranks == out.ranks.ranks;
  if (!is_dear) out.price = price_of(input, out.with_room.ranks, Saving::in_any_way);
  return out;
}

// Ranks that wait for offloaded activations, and the price in seconds.
struct SlowTier {
  Concerned<Saved> ranks;
  StepSeconds price;
};

std::optional<SlowTier> slowness_of_tier(const RuleInput& input) {
  SlowTier out;
  out.ranks = concerned<Saved>(input, offloads_often, takes_longer);
  if (out.ranks.ranks.empty()) return std::nullopt;
  out.price = price_of(input, out.ranks.ranks, Saving::by_offload);
  return input.share(sum_of(out.price)) >= 0.05 ? std::optional(out) : std::nullopt;
}

}  // namespace

struct MemorySaving {
  std::optional<TightBudget> budget;
  std::optional<SlowTier> tier;
};

namespace {

// Excludes the cost of the budget from the cost of waiting for a tier.
MemorySaving find_saving(const RuleInput& input) {
  MemorySaving out{tightness(input), slowness_of_tier(input)};
  if (!out.budget || !out.tier) return out;
  for (std::size_t s = 0; s < out.tier->price.size(); ++s)
    out.tier->price[s] = std::max(0.0, out.tier->price[s] - out.budget->price[s]);
  return out;
}

MemorySaving& saving_of(const RuleInput& input) {
  if (!input.memory_saving)
    input.memory_saving = std::make_shared<MemorySaving>(find_saving(input));
  return *input.memory_saving;
}

// Reports memory saved by work although there is room, or at a high price.
void tight_budget(const RuleInput& input, Findings& out) {
  std::optional<TightBudget>& budget = saving_of(input).budget;
  if (!budget) return;
  const bool is_needless = budget->is_needless;
  const std::size_t of_memory = is_needless ? budget->with_room.worst : budget->ranks.worst;
  Finding f = costly(input, "BUDGET.TOO_TIGHT",
                     is_needless ? "Activations are recomputed or moved although there is room"
                                 : "Keeping to the memory budget takes much time",
                     sum_of(budget->price));
  const std::size_t steps = budget->ranks.of_worst.steps;
  f.detail = fmt::format("In {} steps blocks were recomputed or offloaded, for {} of the time",
                         steps, percents(f.cost_share));
  f.evidence = {{"steps", static_cast<double>(steps)}, {"work_share", f.cost_share}};
  if (const auto memory = headroom_of(input, of_memory)) {
    f.detail +=
        fmt::format(", with at least {} free on {} beside a peak of {}", bytes_of(memory->least),
                    ranks_named(input.view, {of_memory}), bytes_of(memory->peak));
    f.evidence.push_back({"least_headroom_bytes", memory->least});
    f.evidence.push_back({"peak_bytes", memory->peak});
  }
  f.detail += ".";
  f.suggestion = is_needless
                     ? "Raise the memory budget; cox plan says what each size costs in time."
                     : "Make batches smaller, or raise the memory budget where the machine has "
                       "more; cox plan says what each size costs in time.";
  tell_ranks(input, budget->told(), f);
  input.counted.add(f, std::move(budget->price));
  out.push_back(std::move(f));
}

// Reports a budget that leaves a rank almost no memory.
void loose_budget(const RuleInput& input, Findings& out) {
  const auto found = concerned<Headroom>(
      input, little_room,
      [](const Headroom& a, const Headroom& b) { return a.ratio() < b.ratio(); });
  if (found.ranks.empty()) return;
  Finding f{"BUDGET.TOO_LOOSE", Severity::medium, "Memory is nearly used up"};
  f.detail =
      fmt::format("At its highest, {} has {} left beside a peak of {}.", found.worst_named(input),
                  bytes_of(found.of_worst.least), bytes_of(found.of_worst.peak));
  f.suggestion = "Lower the memory budget so that blocks are recomputed, or make batches smaller.";
  f.evidence = {{"least_headroom_bytes", found.of_worst.least},
                {"peak_bytes", found.of_worst.peak}};
  name_ranks(input, found.ranks, f);
  out.push_back(std::move(f));
}

void slow_tier(const RuleInput& input, Findings& out) {
  std::optional<SlowTier>& tier = saving_of(input).tier;
  if (!tier) return;
  Finding f = costly(input, "OFFLOAD.TIER_SLOW", "Backward waits for offloaded activations",
                     sum_of(tier->price));
  const Concerned<Saved>& found = tier->ranks;
  f.detail =
      fmt::format("In {} steps blocks were offloaded, and bringing them back took {} of the time.",
                  found.of_worst.steps, percents(f.cost_share));
  f.suggestion =
      "Offload fewer or smaller blocks, recompute them instead (memory.force), or use a "
      "faster tier: pinned memory rather than a disk.";
  f.evidence = {{"steps", static_cast<double>(found.of_worst.steps)}, {"wait_share", f.cost_share}};
  tell_ranks(input, found.ranks, f);
  input.counted.add(f, std::move(tier->price));
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 5> kMemoryRules = {{{"fragmented", fragmented},
                                                    {"leaking", leaking},
                                                    {"tight budget", tight_budget},
                                                    {"loose budget", loose_budget},
                                                    {"slow tier", slow_tier}}};

}  // namespace

StepSeconds told_recompute(const RuleInput& input, const Ranks& without) {
  StepSeconds out(input.view.size(), 0);
  const Ranks told = ranks_slowed_by_memory(input);
  const std::size_t counted = input.view.ranks.size() - without.size();
  for (const std::size_t r : told) {
    if (without.contains(r)) continue;
    const std::vector<double> seconds = input.view.recompute(r);
    for (std::size_t s = 0; s < seconds.size(); ++s)
      out[s] += seconds[s] / static_cast<double>(counted);
  }
  return out;
}

Ranks ranks_slowed_by_memory(const RuleInput& input) {
  Ranks out;
  const MemorySaving& saving = saving_of(input);
  if (saving.budget) out = saving.budget->told();
  if (saving.tier) out.insert(saving.tier->ranks.ranks.begin(), saving.tier->ranks.ranks.end());
  return out;
}

std::span<const NamedRule> memory_rules() {
  return kMemoryRules;
}

}  // namespace cox::diagnosis
