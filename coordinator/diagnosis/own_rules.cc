#include "coordinator/diagnosis/own_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/diagnosis/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kMebibyte = 1024 * 1024;
constexpr double kHighShare = 0.25;  // of wall time
constexpr double kMediumShare = 0.08;

using List = std::vector<Finding>;

// What all rules look at.
class Room {
 public:
  explicit Room(const OwnInput& input)
      : view(*input.view), budget(*input.budget), trace(input.trace) {}

  const RunView& view;
  const Budget& budget;
  const std::optional<KernelTrace>& trace;

  const RankRecord& rank(std::size_t r) const { return view.run->ranks[r]; }
  double seconds_of(std::string_view line) const {
    const auto found = std::ranges::find(budget.lines, line, &BudgetLine::name);
    return found == budget.lines.end() ? 0 : found->seconds;
  }
  double share(double seconds) const {
    return budget.wall_seconds > 0 ? seconds / budget.wall_seconds : 0;
  }
  // Seconds in a phase, mean over the ranks.
  double phase_seconds(std::string_view name) const {
    ExactSum sum;
    for (std::size_t r = 0; r < view.ranks.size(); ++r) {
      for (const double v : view.column(r, rank(r).phases, name)) sum.add(is_absent(v) ? 0 : v);
    }
    return sum.value() / static_cast<double>(view.ranks.size());
  }
  std::vector<double> own(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).own, name);
  }
  std::vector<double> scalar(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).scalars, name);
  }
  std::vector<double> memory(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).memory, name);
  }
  bool is_skipped(const std::vector<double>& skipped, std::size_t s) const {
    return skipped[s] == 1;
  }
};

Severity severity_of(double share) {
  if (share >= kHighShare) return Severity::high;
  return share >= kMediumShare ? Severity::medium : Severity::low;
}

// A finding whose severity follows from what it costs.
Finding costly(const Room& room, std::string code, std::string title, double seconds) {
  Finding out;
  out.code = std::move(code);
  out.title = std::move(title);
  out.cost_seconds = seconds;
  out.cost_share = room.share(seconds);
  out.severity = severity_of(out.cost_share);
  return out;
}

std::vector<double> present(std::vector<double> values) {
  std::erase_if(values, is_absent);
  return values;
}

std::string percents(double fraction) {
  return percent_text(fraction, fraction < 0.1 ? 1 : 0);
}

// ---- Where the time of all ranks went.

void data_stall(const Room& room, List& out) {
  const double data = room.seconds_of("data_stall");
  const double share = room.share(data);
  if (share < 0.20) return;
  Finding f = costly(room, "TIMING.DATALOADER_BOUND", "Steps wait for data", data);
  f.detail = concat("All ranks spend ", percents(share), " of their time (",
                    seconds_text(data / static_cast<double>(room.view.size())),
                    " a step) on fetching data, apart from computing.");
  f.suggestion =
      "Load in more worker threads, prefetch further, and move decoding out of the step.";
  f.evidence = {{"data_share", share}};
  out.push_back(std::move(f));
}

bool recomputes(const Room& room) {
  const std::vector<double> blocks = room.own(0, "recomputed_blocks");
  return std::ranges::any_of(blocks, [](double v) { return v > 0; });
}

void slow_backward(const Room& room, List& out) {
  const double forward = room.phase_seconds("forward");
  const double backward = room.phase_seconds("backward");
  const double normal = recomputes(room) ? 3 : 2;  // recomputation is one forward pass more
  const double ratio = forward > 0 ? backward / forward : 0;
  if (ratio < normal + 0.5) return;
  Finding f = costly(room, "TIMING.BACKWARD_HEAVY", "The backward pass is slow",
                     backward - normal * forward);
  f.detail =
      concat("Backward takes ", fixed(ratio, 1), " times as long as forward; ", fixed(normal, 0),
             " times is normal", normal > 2 ? " with recomputation." : " without recomputation.");
  f.suggestion =
      "Look for graphs that are kept or built twice, operators whose gradients are not fused, and "
      "recomputation that nobody asked for; cox ops shows FLOPs by block.";
  f.evidence = {{"backward_by_forward", ratio}, {"normal", normal}};
  out.push_back(std::move(f));
}

void slow_optimizer(const Room& room, List& out) {
  const double seconds = room.phase_seconds("optimizer");
  const double share = room.share(seconds);
  if (share < 0.15) return;
  Finding f = costly(room, "TIMING.OPTIMIZER_HEAVY", "The optimizer step is slow",
                     seconds - 0.05 * room.budget.wall_seconds);
  f.detail = concat("The optimizer takes ", percents(share), " of the time; 5 % is common.");
  f.suggestion = "Use a fused or multi-tensor optimizer, or shard its state over the ranks.";
  f.evidence = {{"optimizer_share", share}};
  out.push_back(std::move(f));
}

void communication(const Room& room, List& out) {
  const double seconds = room.seconds_of("exposed_communication");
  const double share = room.share(seconds);
  if (room.view.ranks.size() < 2 || share < 0.20) return;
  Finding f = costly(room, "DIST.COMM_BOUND", "Communication takes much of the step", seconds);
  f.detail =
      concat("Ranks spend ", percents(share),
             " of their time on communication that nothing hides; waiting for slower ranks (",
             percents(room.share(room.seconds_of("waiting"))), ") is not in it.");
  f.suggestion =
      "Reduce while backward still runs (buckets), send gradients in 16 bits, accumulate over "
      "micro-batches, or check the network between the nodes.";
  f.evidence = {{"communication_share", share}};
  out.push_back(std::move(f));
}

void exposed_kernels(const Room& room, List& out) {
  if (!room.trace || room.trace->exposed_fraction() < 0.05) return;
  const KernelTrace& t = *room.trace;
  Finding f = costly(room, "DIST.EXPOSED_COMM", "Computation does not hide communication",
                     t.exposed_fraction() * room.budget.wall_seconds);
  f.detail =
      concat("In the trace ", percents(t.exposed_fraction()),
             " of the time is communication with no kernel beside it; ", percents(t.overlap()),
             " of ", seconds_text(t.communication_seconds), " is hidden.");
  f.suggestion = "Reduce gradients in smaller buckets and earlier, so that backward still runs.";
  f.evidence = {{"exposed_share", t.exposed_fraction()}, {"overlap", t.overlap()}};
  out.push_back(std::move(f));
}

// Steps that took more than 1.5 times those around them.
void uneven_steps(const Room& room, List& out) {
  const std::size_t n = room.view.size();
  std::vector<double> walls;
  for (std::size_t s = 0; s < n; ++s) walls.push_back(room.view.wall(s));
  const double usual = median_of(walls);
  std::size_t count = 0;
  double lost = 0;
  for (const double wall : walls) {
    if (wall <= 1.5 * usual) continue;
    ++count;
    lost += wall - usual;
  }
  const bool is_rule = count >= std::max<std::size_t>(3, n / 25);
  if (n < 2 * kLeastSteps || !is_rule || room.share(lost) < 0.02) return;
  Finding f = costly(room, "TIMING.JITTER", "Some steps take much longer than others", lost);
  f.detail = concat(count, " of ", n, " steps take more than 1.5 times the median of ",
                    seconds_text(usual), ".");
  f.suggestion =
      "Look at what happens in those steps: logging, saves, evaluation, batches of other lengths, "
      "or other programs on the machine.";
  f.evidence = {{"slow_steps", static_cast<double>(count)}, {"median_seconds", usual}};
  out.push_back(std::move(f));
}

void low_utilization(const Room& room, List& out) {
  if (!room.budget.mfu || *room.budget.mfu >= 0.50) return;
  const double overhead = room.seconds_of("compute_overhead");
  if (room.share(overhead) < 0.10) return;
  Finding f =
      costly(room, "EFFICIENCY.LOW_MFU", "The device does little of what it could", overhead);
  f.severity = *room.budget.mfu < 0.30 ? Severity::high : Severity::medium;
  f.detail = concat("Model FLOPs take ", percents(*room.budget.mfu),
                    " of what the device could do in that time; ", percents(room.share(overhead)),
                    " of the time goes into kernels below its peak.");
  f.suggestion =
      "Use 16-bit precision, larger batches and fused kernels; cox ops names the slow ones.";
  f.evidence = {{"mfu", *room.budget.mfu}};
  out.push_back(std::move(f));
}

// ---- Ranks beside each other.

double cost_of_ranks(const RunView& view, const std::set<std::size_t>& slow) {
  double lost = 0;
  for (std::size_t s = 0; s < view.size(); ++s) {
    float others = 0;
    for (std::size_t r = 0; r < view.ranks.size(); ++r) {
      if (!slow.contains(r)) others = std::max(others, view.ranks[r].work[s]);
    }
    lost += static_cast<double>(view.longest_work[s] - others);
  }
  return lost;
}

std::string ranks_of(const RunView& view, const std::set<std::size_t>& ranks) {
  std::vector<std::size_t> numbers;
  for (const std::size_t r : ranks)
    numbers.push_back(static_cast<std::size_t>(view.run->ranks[r].rank));
  return ranks_text(numbers, view.ranks.size());
}

std::string capital(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

Finding slow_finding(const Room& room, const std::vector<SlowRank>& slow) {
  std::set<std::size_t> ranks;
  std::string each;
  Finding details;
  for (const SlowRank& s : slow) {
    ranks.insert(s.rank);
    const std::int32_t number = room.rank(s.rank).rank;
    details.ranks.push_back(number);
    details.evidence.push_back({concat("slowdown_of_rank_", number), s.slowdown});
    each += concat(each.empty() ? "" : "; ", "rank ", number, " takes ", percents(s.slowdown),
                   " longer than most, mostly in ", s.phase);
    const bool is_all = s.begin <= room.view.size() / 20 && s.end >= room.view.size() * 19 / 20;
    if (!is_all)
      each += concat(" (steps ", room.view.steps[s.begin], " to ", room.view.steps[s.end - 1], ")");
  }
  Finding f =
      costly(room, "DIST.STRAGGLER",
             capital(ranks_of(room.view, ranks)) +
                 (slow.size() == 1 ? " is slower than the others" : " are slower than the others"),
             cost_of_ranks(room.view, ranks));
  f.ranks = details.ranks;
  f.evidence = details.evidence;
  f.detail = capital(each) + ". The other ranks wait for that in every step.";
  f.suggestion =
      slow.front().phase == "data"
          ? "Look at the data loading of these ranks: their disk, their shard, their CPU."
          : "Look at these hosts: other programs, heat, clocks, placement of the process; "
            "or give these ranks a smaller share (policy: balance).";
  return f;
}

// A rank that is late is told as such; what others lose by turns is imbalance.
void ranks_apart(const Room& room, List& out) {
  const RunView& view = room.view;
  const std::vector<SlowRank> slow = slow_ranks(view);
  std::set<std::size_t> named;
  for (const SlowRank& s : slow) named.insert(s.rank);
  if (!slow.empty()) out.push_back(slow_finding(room, slow));
  if (view.ranks.size() - named.size() < 2) return;
  double lost = 0;
  for (std::size_t s = 0; s < view.size(); ++s) {
    double most = 0;
    double sum = 0;
    for (std::size_t r = 0; r < view.ranks.size(); ++r) {
      if (named.contains(r)) continue;
      most = std::max(most, static_cast<double>(view.ranks[r].work[s]));
      sum += static_cast<double>(view.ranks[r].work[s]);
    }
    lost += most - sum / static_cast<double>(view.ranks.size() - named.size());
  }
  if (room.share(lost) < 0.08) return;
  Finding f = costly(room, "DIST.LOAD_IMBALANCE", "Ranks take turns in being late", lost);
  f.detail =
      concat("No one rank is slow in it, but in each step the last one is later than the mean: ",
             percents(room.share(lost)), " of the time is waiting for it.");
  f.suggestion =
      "Even out the work in a step: sort samples by length, or count tokens, not samples.";
  f.evidence = {{"lost_share", room.share(lost)}};
  out.push_back(std::move(f));
}

// ---- Learning.

// Losses that are not finite in steps that a loss scaler skipped are its normal work.
void diverging(const Room& room, List& out) {
  const std::vector<double> loss = room.scalar(0, "loss");
  const std::vector<double> skipped = room.own(0, "skipped");
  std::size_t count = 0;
  std::size_t first = 0;
  for (std::size_t s = 0; s < loss.size(); ++s) {
    if (is_absent(loss[s]) || std::isfinite(loss[s]) || room.is_skipped(skipped, s)) continue;
    if (count++ == 0) first = s;
  }
  if (count == 0) return;
  Finding f = costly(room, "CONVERGENCE.DIVERGED", "The loss is not finite",
                     room.budget.wall_seconds * static_cast<double>(loss.size() - first) /
                         static_cast<double>(loss.size()));
  f.severity = Severity::high;
  f.detail = concat("From step ", room.view.steps[first], " on ", count,
                    " steps have a loss that is not finite; what follows is lost.");
  f.suggestion =
      "Resume from a save before that step with a lower learning rate or clipped gradients, and "
      "look at the batch of that step.";
  f.evidence = {{"first_step", static_cast<double>(room.view.steps[first])},
                {"steps", static_cast<double>(count)}};
  out.push_back(std::move(f));
}

// The change of the loss from the first to the last tenth, and how sure it is.
void flat_loss(const Room& room, List& out) {
  std::vector<double> loss = present(room.scalar(0, "loss"));
  const bool is_finite = std::ranges::all_of(loss, [](double v) { return std::isfinite(v); });
  if (!is_finite || loss.size() < 50) return;
  const EndMedians ends = end_medians(loss);
  std::vector<double> moves;
  for (std::size_t i = 1; i < loss.size(); ++i) moves.push_back(loss[i] - loss[i - 1]);
  const double noise = robust_deviation(moves) / std::sqrt(2.0);
  const double error = 1.7725 * noise / std::sqrt(static_cast<double>(loss.size() / 10));
  const double drop = ends.first - ends.last;
  const double scale = std::fabs(ends.first) > 0 ? std::fabs(ends.first) : 1;
  const bool is_worse = drop < -0.02 * scale && drop < -3 * error;
  const bool is_better = drop > 0.02 * scale || drop > 5 * error;
  if (is_better || (!is_worse && drop < -0.02 * scale)) return;
  Finding f;
  f.code = "CONVERGENCE.NO_PROGRESS";
  f.severity = is_worse ? Severity::high : Severity::low;
  f.title = is_worse ? "The loss rises" : "The loss no longer falls";
  f.detail = concat("The loss goes from ", significant(ends.first, 4), " to ",
                    significant(ends.last, 4), " (medians of the first and last tenth).");
  f.suggestion =
      is_worse ? "Lower the learning rate, or warm it up for longer."
               : "Lower the learning rate by schedule, or stop: this run has learnt what it will.";
  f.evidence = {{"drop", drop}, {"standard_error", error}};
  out.push_back(std::move(f));
}

// Indexes that stick out above the 24 values before them by eight deviations and a fifth.
std::set<std::size_t> far_spikes(const std::vector<double>& values) {
  constexpr std::size_t kWindow = 24;
  std::set<std::size_t> out;
  std::vector<double> window;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    if (window.size() >= kLeastSteps) {
      const double middle = median_of(window);
      const double far = std::max(8 * robust_deviation(window), 0.2 * std::fabs(middle));
      if (values[i] > middle + far && values[i] > middle) out.insert(i);
    }
    window.push_back(values[i]);
    if (window.size() > kWindow) window.erase(window.begin());
  }
  return out;
}

void unstable(const Room& room, List& out) {
  const std::set<std::size_t> loss = far_spikes(room.scalar(0, "loss"));
  const std::set<std::size_t> norm = far_spikes(room.scalar(0, "grad_norm"));
  std::vector<double> work(room.view.ranks[0].work.begin(), room.view.ranks[0].work.end());
  const std::set<std::size_t> time = far_spikes(work);
  std::vector<std::size_t> events;
  for (std::size_t s = 0; s < room.view.size(); ++s) {
    // Learning must take part: a slow step with a large allocation is no instability.
    const bool is_both = loss.contains(s) && norm.contains(s);
    const bool is_one = (loss.contains(s) || norm.contains(s)) && time.contains(s);
    if ((is_both || is_one) && (events.empty() || s - events.back() > 5)) events.push_back(s);
  }
  if (events.empty()) return;
  Finding f;
  f.code = "CROSS.CORRELATED_INSTABILITY";
  f.severity = Severity::high;
  f.title = concat("Loss and gradients jump together at step ", room.view.steps[events.front()]);
  f.detail = concat(events.size(), events.size() == 1 ? " event" : " events",
                    " in which several of loss, gradient norm and step time stick out at once; the "
                    "first at step ",
                    room.view.steps[events.front()], ".");
  f.suggestion = "Look at the batch and the learning rate of that step; clip gradients.";
  f.evidence = {{"events", static_cast<double>(events.size())},
                {"first_step", static_cast<double>(room.view.steps[events.front()])}};
  out.push_back(std::move(f));
}

// ---- Memory.

void fragmented(const Room& room, List& out) {
  const std::vector<double> alloc = room.memory(0, "alloc");
  const std::vector<double> reserved = room.memory(0, "reserved");
  std::vector<double> shares;
  double peak = 0;
  for (std::size_t s = 0; s < alloc.size(); ++s) {
    if (is_absent(alloc[s]) || !(reserved[s] > 0)) continue;
    shares.push_back((reserved[s] - alloc[s]) / reserved[s]);
    peak = std::max(peak, alloc[s]);
  }
  const double share = mean_of(shares);
  if (shares.size() < kLeastSteps || peak < 64 * kMebibyte || share < 0.20) return;
  Finding f;
  f.code = "MEMORY.FRAGMENTATION";
  f.severity = share >= 0.40 ? Severity::medium : Severity::low;
  f.title = "Much memory is reserved and not used";
  f.detail =
      concat("On average ", percents(share), " of what the allocator holds is in no tensor; ",
             bytes_text(static_cast<std::uint64_t>(peak)), " are.");
  f.suggestion = "Use expandable segments, and avoid shapes that change from step to step.";
  f.evidence = {{"unused_share", share}};
  out.push_back(std::move(f));
}

// A leak grows through the whole run; a step up at a new plan or batch size does not.
void leaking(const Room& room, List& out) {
  for (std::size_t r = 0; r < room.view.ranks.size(); ++r) {
    const std::vector<double> alloc = present(room.memory(r, "alloc"));
    if (alloc.size() < 20) continue;
    const std::span<const double> all(alloc);
    const EndMedians ends = end_medians(all);
    const double middle =
        median_of({alloc.begin() + static_cast<std::ptrdiff_t>(alloc.size() * 45 / 100),
                   alloc.begin() + static_cast<std::ptrdiff_t>(alloc.size() * 55 / 100 + 1)});
    const double total = ends.last - ends.first;
    const double slope = total / static_cast<double>(alloc.size() - 1);
    const double peak = *std::ranges::max_element(alloc);
    const bool is_steady = middle - ends.first > 0.25 * total && ends.last - middle > 0.25 * total;
    const bool is_large = (slope >= kMebibyte && total >= 0.01 * peak) || total >= 0.10 * peak;
    if (!is_steady || !is_large || total <= 0) continue;
    Finding f;
    f.code = "MEMORY.GROWTH";
    f.severity = Severity::high;
    f.title = "Memory grows from step to step";
    f.detail = concat("Tensors of rank ", room.rank(r).rank, " grow by ",
                      bytes_text(static_cast<std::uint64_t>(slope)), " a step, ",
                      bytes_text(static_cast<std::uint64_t>(total)), " in all.");
    f.suggestion = "Look for tensors that are kept: losses summed with their graph, lists, caches.";
    f.ranks = {room.rank(r).rank};
    f.evidence = {{"bytes_per_step", slope}, {"bytes", total}};
    out.push_back(std::move(f));
    return;
  }
}

// Memory that was saved by work, though there is room.
void loose_budget(const Room& room, List& out) {
  const std::vector<double> recomputed = room.own(0, "recomputed_blocks");
  const std::vector<double> offloaded = room.own(0, "offloaded_blocks");
  const std::vector<double> headroom = room.own(0, "headroom");
  const std::vector<double> peaks = room.memory(0, "peak_alloc");
  std::size_t steps = 0;
  double least = 0;
  double peak = 0;
  for (std::size_t s = 0; s < headroom.size(); ++s) {
    if (is_absent(headroom[s]) || is_absent(peaks[s])) return;
    steps += recomputed[s] > 0 || offloaded[s] > 0 ? 1u : 0u;
    least = s == 0 ? headroom[s] : std::min(least, headroom[s]);
    peak = std::max(peak, peaks[s]);
  }
  if (steps < std::max(kLeastSteps, headroom.size() / 2) || least < 0.5 * peak || peak <= 0) return;
  Finding f;
  f.code = "BUDGET.TOO_LOOSE";
  f.severity = Severity::low;
  f.title = "Activations are recomputed or moved although there is room";
  f.detail = concat("In ", steps, " steps blocks were recomputed or offloaded while at least ",
                    bytes_text(static_cast<std::uint64_t>(least)), " were free beside a peak of ",
                    bytes_text(static_cast<std::uint64_t>(peak)), ".");
  f.suggestion = "Raise the memory budget; cox plan says what each size costs in time.";
  f.evidence = {{"least_headroom_bytes", least}, {"peak_bytes", peak}};
  out.push_back(std::move(f));
}

void tight_budget(const Room& room, List& out) {
  const std::vector<double> headroom = present(room.own(0, "headroom"));
  const std::vector<double> peaks = present(room.memory(0, "peak_alloc"));
  if (headroom.size() < kLeastSteps || peaks.empty()) return;
  const double least = *std::ranges::min_element(headroom);
  const double peak = *std::ranges::max_element(peaks);
  if (peak <= 0 || least >= 0.03 * peak) return;
  Finding f;
  f.code = "BUDGET.TOO_TIGHT";
  f.severity = Severity::medium;
  f.title = "Memory is nearly used up";
  f.detail = concat("At its highest, rank ", room.rank(0).rank, " has ",
                    bytes_text(static_cast<std::uint64_t>(std::max(0.0, least))),
                    " left beside a peak of ", bytes_text(static_cast<std::uint64_t>(peak)), ".");
  f.suggestion = "Lower the memory budget so that blocks are recomputed, or make batches smaller.";
  f.evidence = {{"least_headroom_bytes", least}, {"peak_bytes", peak}};
  out.push_back(std::move(f));
}

// ---- What the coordinator did.

void flapping_plans(const Room& room, List& out) {
  const std::vector<double> plans = room.own(0, "plan");
  if (plans.size() < 40) return;
  std::size_t changes = 0;
  for (std::size_t s = 1; s < plans.size(); ++s) {
    if (!is_absent(plans[s]) && !is_absent(plans[s - 1]) && plans[s] != plans[s - 1]) ++changes;
  }
  const double every =
      static_cast<double>(plans.size()) / static_cast<double>(std::max<std::size_t>(1, changes));
  if (changes < 6 || every > 10) return;
  Finding f;
  f.code = "PLAN.FLAPPING";
  f.severity = Severity::medium;
  f.title = "Plans change all the time";
  f.detail = concat("The plan changed ", changes, " times, every ", fixed(every, 1), " steps.");
  f.suggestion = "cox replay RUN --verbose names the policy; raise its threshold or its interval.";
  f.evidence = {{"changes", static_cast<double>(changes)}};
  out.push_back(std::move(f));
}

void skipped_steps(const Room& room, List& out) {
  const std::vector<double> skipped = room.own(0, "skipped");
  const std::vector<double> scale = room.own(0, "loss_scale");
  std::size_t count = 0;
  std::size_t at_floor = 0;
  double lost = 0;
  for (std::size_t s = 0; s < skipped.size(); ++s) {
    if (!room.is_skipped(skipped, s)) continue;
    ++count;
    at_floor += scale[s] <= 1 ? 1u : 0u;
    lost += room.view.wall(s);
  }
  const double share = static_cast<double>(count) / static_cast<double>(skipped.size());
  if (skipped.size() < 2 * kLeastSteps || count < 3 || share < 0.03) return;
  const bool is_floor = at_floor * 2 > count;
  Finding f = costly(room, is_floor ? "PRECISION.SCALE_AT_FLOOR" : "PRECISION.SKIPPED_STEPS",
                     is_floor ? "Gradients overflow even with the smallest loss scale"
                              : "Many steps are skipped after an overflow",
                     lost);
  f.severity = is_floor ? Severity::high : f.severity;
  f.detail = concat(count, " of ", skipped.size(), " steps were skipped, ", at_floor,
                    " of them with a loss scale of 1 or less.");
  f.suggestion = is_floor
                     ? "fp16 cannot hold these gradients: use bf16 for the blocks that overflow."
                     : "Start from a lower loss scale or let it grow more slowly (loss_scale).";
  f.evidence = {{"skipped", static_cast<double>(count)},
                {"at_floor", static_cast<double>(at_floor)}};
  out.push_back(std::move(f));
}

void lost_rows(const Room& room, List& out) {
  double dropped = 0;
  for (const RankRecord& rank : room.view.run->ranks) dropped += rank.info.dropped_rows;
  if (dropped > 0) {
    Finding f;
    f.code = "RECORD.DROPPED";
    f.title = "The record has holes";
    f.detail =
        concat(fixed(dropped, 0), " steps were not recorded: the disk was full or too slow.");
    f.suggestion = "Give the run directory a faster disk or more room.";
    f.evidence = {{"rows", dropped}};
    out.push_back(std::move(f));
  }
  if (room.view.impossible == 0) return;
  Finding f;
  f.code = "RECORD.IMPOSSIBLE";
  f.title = "Some steps have times that cannot be";
  f.detail =
      concat(room.view.impossible, " steps with times below zero or not finite are left out.");
  f.suggestion = "Look at what wrote the record, and at the clock of the machine.";
  f.evidence = {{"steps", static_cast<double>(room.view.impossible)}};
  out.push_back(std::move(f));
}

struct NamedRule {
  const char* name;
  void (*rule)(const Room&, List&);
};
constexpr std::array<NamedRule, 18> kRules = {{{"data stall", data_stall},
                                               {"slow backward", slow_backward},
                                               {"slow optimizer", slow_optimizer},
                                               {"communication", communication},
                                               {"exposed kernels", exposed_kernels},
                                               {"uneven steps", uneven_steps},
                                               {"low utilization", low_utilization},
                                               {"ranks apart", ranks_apart},
                                               {"diverging", diverging},
                                               {"flat loss", flat_loss},
                                               {"unstable", unstable},
                                               {"fragmented", fragmented},
                                               {"leaking", leaking},
                                               {"loose budget", loose_budget},
                                               {"tight budget", tight_budget},
                                               {"flapping plans", flapping_plans},
                                               {"skipped steps", skipped_steps},
                                               {"lost rows", lost_rows}}};

Finding failed_rule(const std::string& name, const std::string& why) {
  Finding f;
  f.code = "RULE.FAILED";
  f.severity = Severity::medium;
  f.title = "The rule '" + name + "' failed";
  f.detail = why;
  f.suggestion = "This is a fault of cox, not of the run: please report it with the run directory.";
  return f;
}

bool is_sound(const Finding& f) {
  const bool is_cost_sound = !f.cost_seconds || (std::isfinite(*f.cost_seconds) &&
                                                 *f.cost_seconds >= 0 && f.cost_share <= 1 + 1e-6);
  return is_cost_sound &&
         std::ranges::all_of(f.evidence, [](const Evidence& e) { return std::isfinite(e.value); });
}

void apply(const NamedRule& rule, const Room& room, List& out) {
  List found;
  try {
    rule.rule(room, found);
  } catch (const std::exception& error) {
    found = {failed_rule(rule.name, error.what())};
  }
  for (Finding& f : found)
    out.push_back(is_sound(f)
                      ? std::move(f)
                      : failed_rule(rule.name, "It came to a number that cannot be in " + f.code));
}

}  // namespace

std::vector<Finding> own_findings(const OwnInput& input) {
  const Room room(input);
  List out;
  if (room.view.size() < kLeastSteps) {
    lost_rows(room, out);
    return out;
  }
  for (const NamedRule& rule : kRules) apply(rule, room, out);
  // A loss that is not finite makes all else beside the point.
  const auto rank_of = [](const Finding& f) {
    return f.code == "CONVERGENCE.DIVERGED" ? 2.0 : f.cost_share;
  };
  std::ranges::stable_sort(out, [&rank_of](const Finding& a, const Finding& b) {
    return rank_of(a) != rank_of(b) ? rank_of(a) > rank_of(b) : a.severity < b.severity;
  });
  return out;
}

}  // namespace cox::diagnosis
