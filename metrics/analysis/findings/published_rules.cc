#include "metrics/analysis/findings/published_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/core/words.h"

namespace cox::diagnosis {
namespace {

constexpr double kMiB = 1024 * 1024;
using Findings = std::vector<Finding>;

std::string percent(double fraction, int digits = 0) {
  return fmt::format("{:.{}f}%", 100 * fraction, digits);
}

std::string general(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value)
         : std::isnan(value)  ? "nan"
                              : (value > 0 ? "inf" : "-inf");
}

double fraction_of(const Timing& timing, std::string_view phase) {
  const PhaseTime* found = timing.find(phase);
  return found == nullptr ? 0 : found->fraction;
}

void data_bound(const Figures& figures, Findings& out) {
  const PhaseTime* data = figures.timing.find("data");
  if (data == nullptr || data->fraction < 0.25) return;
  out.push_back({"TIMING.DATALOADER_BOUND",
                 data->fraction >= 0.40 ? Severity::high : Severity::medium,
                 "Steps wait for their data",
                 fmt::format("{} of a step is spent loading its batch ({:.1f} ms a step).",
                             percent(data->fraction), data->seconds * 1e3),
                 "Load batches ahead of time in other threads, or make what is done to a sample "
                 "cheaper."});
}

void backward_heavy(const Figures& figures, Findings& out) {
  const PhaseTime* forward = figures.timing.find("forward");
  const PhaseTime* backward = figures.timing.find("backward");
  if (forward == nullptr || backward == nullptr || !(forward->seconds > 0)) return;
  const double ratio = backward->seconds / forward->seconds;
  if (ratio < 2.5) return;
  out.push_back(
      {"TIMING.BACKWARD_HEAVY", ratio >= 3.5 ? Severity::high : Severity::medium,
       "The backward pass takes long for its forward pass",
       fmt::format("Backward takes {:.1f} times as long as forward; twice is usual.", ratio),
       "Search for activations that are recomputed without need, for graphs that are "
       "kept beyond their step, and for many small operators that could be one."});
}

void optimizer_heavy(const Figures& figures, Findings& out) {
  const double fraction = fraction_of(figures.timing, "optimizer");
  if (fraction < 0.15) return;
  out.push_back(
      {"TIMING.OPTIMIZER_HEAVY", Severity::low, "The optimizer takes a large part",
       fmt::format("{} of a step goes into updating parameters, perhaps one tensor after another.",
                   percent(fraction)),
       "Use an optimizer that updates all parameters in one fused kernel."});
}

void jitter(const Figures& figures, Findings& out) {
  const Timing& t = figures.timing;
  if (t.steps < 10 || (t.variation() < 0.50 && t.tail_ratio() < 1.5)) return;
  out.push_back(
      {"TIMING.JITTER", Severity::low, "Steps differ much in length",
       fmt::format("The deviation of step times is {:.2f} of their mean, and their 95th percentile "
                   "{:.2f} times their median.",
                   t.variation(), t.tail_ratio()),
       "Find out what the longest steps have in common: a save, an evaluation, a larger batch, a "
       "pause "
       "of the machine."});
}

void diverged(const Figures& figures, Findings& out) {
  const auto& at = figures.convergence.diverged_at;
  if (!at) return;
  out.push_back({"CONVERGENCE.DIVERGED", Severity::high, "The loss is no finite number",
                 fmt::format("From step {} on; later figures mean nothing.", *at),
                 "Go back to a save before that step, with a smaller learning rate or with "
                 "gradients clipped; check for divisions by zero, logarithms of zero and bad "
                 "samples."});
}

void no_progress(const Figures& figures, Findings& out) {
  const Convergence& c = figures.convergence;
  const bool is_worse = c.trend == Trend::worsening;
  if (c.steps < 50 || (!is_worse && c.trend != Trend::plateau)) return;
  out.push_back({"CONVERGENCE.NO_PROGRESS", is_worse ? Severity::high : Severity::low,
                 is_worse ? "The loss rises" : "The loss stands still",
                 fmt::format("Over the run it is {}: {} at its best, {} at the end.",
                             to_string(c.trend), general(*c.best_loss), general(*c.final_loss)),
                 is_worse ? "Try a smaller learning rate."
                          : "Try a learning rate that decays, or a larger model; or stop here."});
}

void instability(const Figures& figures, Findings& out) {
  for (const Instability& event : figures.instabilities) {
    const std::string where = event.first_step == event.last_step
                                  ? fmt::format("step {}", event.first_step)
                                  : fmt::format("steps {}–{}", event.first_step, event.last_step);
    std::vector<std::string> values;
    if (event.loss) values.push_back(fmt::format("loss={}", general(*event.loss)));
    if (event.gradient_norm)
      values.push_back(fmt::format("grad_norm={}", general(*event.gradient_norm)));
    if (event.step_seconds)
      values.push_back(fmt::format("step_time={:.1f}ms", *event.step_seconds * 1e3));
    if (event.alloc_bytes)
      values.push_back(fmt::format("alloc={:.0f}MB", *event.alloc_bytes / kMiB));
    out.push_back(
        {"CROSS.CORRELATED_INSTABILITY", Severity::high,
         fmt::format("Several figures jump at {}", where),
         fmt::format("At {} these figures jump together, which is rarely chance: {} ({}).", where,
                     joined(event.axes), joined(values)),
         "Check the batches of these steps and the learning rate there; clip gradients."});
  }
}

void straggler(const Figures& figures, Findings& out) {
  if (!figures.distributed || !figures.distributed->straggler) return;
  const Distributed& d = *figures.distributed;
  const RankFigures& rank = d.ranks[*d.straggler];
  // The published rule compares percentages.
  const bool is_high = d.lost_fraction * 100 >= 10 || rank.slowdown >= 0.25;
  out.push_back(
      {"DIST.STRAGGLER", is_high ? Severity::high : Severity::medium,
       fmt::format("Rank {} keeps the others waiting", rank.rank),
       fmt::format(
           "It is the slowest of {} in {} of the steps, where chance would make it {} (z = "
           "{:.1f}), {} slower than the median; the ranks' differences cost {} of the time.",
           d.ranks.size(), percent(rank.slowest_fraction),
           percent(1 / static_cast<double>(d.ranks.size())), rank.z, percent(rank.slowdown),
           percent(d.lost_fraction, 1)),
       fmt::format("Check the machine of rank {}: clocks, cooling, other programs; and whether its "
                   "part of the data is larger.",
                   rank.rank)});
}

void load_imbalance(const Figures& figures, Findings& out) {
  if (!figures.distributed || figures.distributed->straggler) return;
  const Distributed& d = *figures.distributed;
  if (d.variation < 0.15 || d.lost_fraction * 100 < 5) return;
  out.push_back(
      {"DIST.LOAD_IMBALANCE", Severity::medium, "Ranks have unequal work",
       fmt::format(
           "Their computing deviates by {:.2f} of its mean, and no rank is always the slowest; {} "
           "of the time goes into waiting for each other ({:.1f} ms a step in the median).",
           d.variation, percent(d.lost_fraction, 1), d.skew_seconds * 1e3),
       "Give ranks equal work: batches of equal length, samples of like cost together."});
}

void comm_bound(const Figures& figures, Findings& out) {
  if (!figures.distributed || figures.distributed->mean_comm_fraction < 0.25) return;
  const double fraction = figures.distributed->mean_comm_fraction;
  out.push_back(
      {"DIST.COMM_BOUND", fraction >= 0.45 ? Severity::high : Severity::medium,
       "Communication takes a large part",
       fmt::format("{} of a step of {} ranks goes into collectives that no computing hides.",
                   percent(fraction), figures.distributed->ranks.size()),
       "Send gradients while backward still runs, compute more in a step (a larger "
       "batch, several micro-batches), or check the network's bandwidth."});
}

void exposed_comm(const Figures& figures, Findings& out) {
  if (!figures.trace || figures.trace->communication_kernels == 0) return;
  const KernelTrace& t = *figures.trace;
  const double exposed = t.exposed_fraction() * 100;
  if (exposed < 5) return;
  out.push_back({"DIST.EXPOSED_COMM", exposed >= 15 ? Severity::high : Severity::medium,
                 "Communication stands beside computing, not behind it",
                 fmt::format("{} of the time collectives run and no kernel computes; of {:.1f} ms "
                             "of communication {} is hidden.",
                             percent(t.exposed_fraction()), t.communication_seconds * 1e3,
                             percent(t.overlap())),
                 "Send gradients in buckets as they become ready, of another size perhaps, or "
                 "compute more in a step, so that backward outlasts its reduction."});
}

Finding bubble_beyond_ideal(const Pipeline& p) {
  return {"DIST.PIPELINE_BUBBLE", *p.excess() >= 0.15 ? Severity::high : Severity::medium,
          "Stages of the pipeline idle more than they must",
          fmt::format("{} of the time of {} stages is idle; with {} micro-batches it need not be "
                      "more than {} ({:.0f} points less).",
                      percent(p.bubble), p.stage_bubbles.size(), *p.microbatches,
                      percent(*p.ideal_bubble), *p.excess() * 100),
          "Cut the model into stages of equal time, find the slow stage, or interleave forward "
          "and backward passes."};
}

void pipeline_bubble(const Figures& figures, Findings& out) {
  if (!figures.pipeline) return;
  for (Finding& each : published_findings(*figures.pipeline)) out.push_back(std::move(each));
}

std::string hint_for(const std::string& line) {
  if (line == "compute_overhead") return "narrower formats and fused kernels bring it down";
  if (line == "data_stall") return "load batches ahead of time";
  if (line == "communication") return "reduce gradients while backward runs";
  return "measure what steps do between their phases: logs, saves, evaluations";
}

std::string share_text(const BudgetLine& line) {
  return fmt::format("{} {}", line.name, percent(line.fraction));
}

void low_efficiency(const Figures& figures, Findings& out) {
  if (!figures.efficiency) return;
  const Efficiency& e = *figures.efficiency;
  const std::vector<BudgetLine> lines = e.recoverable();
  if (lines.empty() || lines[0].fraction < 0.10) return;
  const BudgetLine& top = lines[0];
  if (e.mfu ? *e.mfu >= 0.50 : top.fraction < 0.20) return;
  std::vector<std::string> shares;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, lines.size()); ++i)
    shares.push_back(share_text(lines[i]));
  const bool is_high = e.mfu ? *e.mfu < 0.30 : top.fraction >= 0.35;
  const std::string anchor =
      fmt::format("At its peak the device would need {} of the time for these FLOPs. ",
                  percent(e.useful_fraction()));
  out.push_back(
      {e.mfu ? "EFFICIENCY.LOW_MFU" : "EFFICIENCY.RECOVERABLE",
       is_high ? Severity::high : Severity::medium,
       e.mfu ? fmt::format("MFU is {}", percent(*e.mfu))
             : fmt::format("{} takes {} of the time", top.name, percent(top.fraction)),
       fmt::format("{}The largest gain is possible in {}: {:.2f} s in {} steps. In order: {}.",
                   e.mfu ? anchor : "", top.name, top.seconds, e.steps, joined(shares)),
       fmt::format("Begin with {}: {}.", top.name, hint_for(top.name))});
}

void fragmentation(const Figures& figures, Findings& out) {
  const MemoryUse& m = figures.memory;
  if (!m.is_there || m.peak_alloc_bytes < 64 * kMiB || m.fragmentation < 0.20) return;
  out.push_back({"MEMORY.FRAGMENTATION", m.fragmentation >= 0.40 ? Severity::medium : Severity::low,
                 "The allocator holds much more than tensors take",
                 fmt::format("{} of the reserved memory is unused in the mean ({:.0f} MiB "
                             "reserved, {:.0f} MiB in use, at most).",
                             percent(m.fragmentation), m.peak_reserved_bytes / kMiB,
                             m.peak_alloc_bytes / kMiB),
                 "Let the allocator grow its segments (expandable_segments), and keep shapes from "
                 "changing with every batch."});
}

void growth(const Figures& figures, Findings& out) {
  const MemoryUse& m = figures.memory;
  if (!m.is_there || m.steps < 20 || m.growth_bytes_per_step < kMiB) return;
  const double total = m.growth_bytes_per_step * static_cast<double>(m.steps);
  if (total < 0.01 * std::max(m.peak_alloc_bytes, 1.0)) return;
  out.push_back(
      {"MEMORY.GROWTH", Severity::high, "Memory grows from step to step",
       fmt::format("By {:.1f} MiB a step, {:.0f} MiB in {} steps: something keeps tensors of "
                   "earlier steps.",
                   m.growth_bytes_per_step / kMiB, total / kMiB, m.steps),
       "Search for losses that are added up with their graphs, lists of tensors, and caches "
       "without a bound; detach what is kept."});
}

}  // namespace

std::vector<Finding> published_findings(const Pipeline& p) {
  if (p.ideal_bubble) return *p.excess() < 0.05 ? Findings() : Findings{bubble_beyond_ideal(p)};
  if (p.bubble < 0.25) return {};
  return {{"DIST.PIPELINE_BUBBLE", p.bubble >= 0.45 ? Severity::high : Severity::medium,
           "Stages of the pipeline idle",
           fmt::format("{} of the time of {} stages is idle, most of it in stage {}.",
                       percent(p.bubble), p.stage_bubbles.size(), p.idlest_stage),
           "Use more micro-batches, since filling and draining take (p - 1) / (m + p - 1) of the "
           "time at least, and cut the model into stages of equal time."}};
}

std::vector<Finding> published_findings(const Figures& figures) {
  Findings out;
  for (const auto rule : {data_bound, backward_heavy, optimizer_heavy, jitter, diverged,
                          no_progress, instability, straggler, load_imbalance, comm_bound,
                          exposed_comm, pipeline_bubble, low_efficiency, fragmentation, growth})
    rule(figures, out);
  std::ranges::stable_sort(out, std::less<>(), &Finding::severity);
  return out;
}

}  // namespace cox::diagnosis
