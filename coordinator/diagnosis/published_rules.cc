#include "coordinator/diagnosis/published_rules.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::diagnosis {
namespace {

constexpr double kMiB = 1024 * 1024;
using Findings = std::vector<Finding>;

std::string percent(double fraction, int digits = 0) {
  return sentence("%.*f%%", digits, 100 * fraction);
}

std::string general(double value) {
  return std::isfinite(value) ? sentence("%.4g", value)
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
                 "Input pipeline is a bottleneck",
                 percent(data->fraction) + " of step time is spent fetching data " +
                     sentence("(%.1f ms/step). ", data->seconds * 1e3) +
                     "The accelerator is stalling on the dataloader.",
                 "Raise DataLoader num_workers, set persistent_workers=True and pin_memory=True, "
                 "prefetch, or move heavy transforms off the hot path / onto the GPU."});
}

void backward_heavy(const Figures& figures, Findings& out) {
  const PhaseTime* forward = figures.timing.find("forward");
  const PhaseTime* backward = figures.timing.find("backward");
  if (forward == nullptr || backward == nullptr || !(forward->seconds > 0)) return;
  const double ratio = backward->seconds / forward->seconds;
  if (ratio < 2.5) return;
  out.push_back({"TIMING.BACKWARD_HEAVY", ratio >= 3.5 ? Severity::high : Severity::medium,
                 "Backward pass disproportionately slow",
                 sentence("Backward is %.1fx forward (normal is ~2x). ", ratio) +
                     "Often caused by retain_graph=True, unfused elementwise ops, or activation "
                     "recomputation you didn't intend.",
                 "Check for stray retain_graph/create_graph, enable AMP, and consider "
                 "torch.compile to fuse backward ops."});
}

void optimizer_heavy(const Figures& figures, Findings& out) {
  const double fraction = fraction_of(figures.timing, "optimizer");
  if (fraction < 0.15) return;
  out.push_back({"TIMING.OPTIMIZER_HEAVY", Severity::low, "Optimizer step is costly",
                 percent(fraction) +
                     " of step time is the optimizer. For small models this can dominate; for "
                     "large ones it may signal a Python-side per-parameter loop.",
                 "Use a fused/foreach optimizer (foreach=True or fused=True) to batch the "
                 "parameter updates."});
}

void jitter(const Figures& figures, Findings& out) {
  const Timing& t = figures.timing;
  if (t.steps < 10 || (t.variation() < 0.50 && t.tail_ratio() < 1.5)) return;
  out.push_back(
      {"TIMING.JITTER", Severity::low, "High step-time variance",
       sentence("Step time is uneven (CV=%.2f, p95/median=%.2f). ", t.variation(), t.tail_ratio()) +
           "Stragglers point to input-pipeline stalls, GC pauses, logging/checkpoint "
           "hitches, or uneven batch sizes.",
       "Profile a few slow steps specifically; move checkpointing and logging off the "
       "critical path."});
}

void diverged(const Figures& figures, Findings& out) {
  const auto& at = figures.convergence.diverged_at;
  if (!at) return;
  out.push_back({"CONVERGENCE.DIVERGED", Severity::high, "Loss diverged (NaN/Inf)",
                 concat("Loss became non-finite at step ", *at,
                        ". Training is broken from this point — later metrics are meaningless."),
                 "Lower the learning rate, add gradient clipping, check for bad inputs / log(0) / "
                 "divide-by-zero in the loss, and verify AMP loss scaling."});
}

void no_progress(const Figures& figures, Findings& out) {
  const Convergence& c = figures.convergence;
  const bool is_worse = c.trend == Trend::worsening;
  if (c.steps < 50 || (!is_worse && c.trend != Trend::plateau)) return;
  out.push_back({"CONVERGENCE.NO_PROGRESS", is_worse ? Severity::high : Severity::low,
                 is_worse ? "Loss is increasing" : "Loss has plateaued",
                 concat("Loss trend over the run is '", c.trend, "' (best ", general(*c.best_loss),
                        ", final ", general(*c.final_loss), ")."),
                 "Worsening: likely LR too high or unstable optimizer. Plateau: try LR decay, more "
                 "capacity, or check the data is still informative."});
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + part;
  return out;
}

void instability(const Figures& figures, Findings& out) {
  for (const Instability& event : figures.instabilities) {
    const std::string where = event.first_step == event.last_step
                                  ? concat("step ", event.first_step)
                                  : concat("steps ", event.first_step, "–", event.last_step);
    std::vector<std::string> values;
    if (event.loss) values.push_back("loss=" + general(*event.loss));
    if (event.gradient_norm) values.push_back("grad_norm=" + general(*event.gradient_norm));
    if (event.step_seconds)
      values.push_back(sentence("step_time=%.1fms", *event.step_seconds * 1e3));
    if (event.alloc_bytes) values.push_back(sentence("alloc=%.0fMB", *event.alloc_bytes / kMiB));
    out.push_back(
        {"CROSS.CORRELATED_INSTABILITY", Severity::high, "Correlated instability at " + where,
         concat("At ", where, ", ", event.axes.size(), " independent axes spike simultaneously (",
                joined(event.axes), "): ", joined(values),
                ". Co-occurrence across axes is strong evidence of a real optimization "
                "event, not noise."),
         "Inspect the LR schedule, gradient clipping, and the specific batch around " + where +
             ". A simultaneous loss + grad-norm spike usually means the update blew up "
             "(LR too high / bad batch)."});
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
       concat("Rank ", rank.rank, " is a persistent straggler"),
       concat("Rank ", rank.rank, " is the slowest (critical-path) rank in ",
              percent(rank.slowest_fraction), " of steps across ", d.ranks.size(),
              " ranks (expected ", percent(1 / static_cast<double>(d.ranks.size())), " by chance; ",
              sentence("z=%.1f), and runs ", rank.z), percent(rank.slowdown),
              " slower than the median rank. Synchronous all-reduce makes every other rank wait "
              "for it — ",
              percent(d.lost_fraction, 1), " of wall time is lost to this imbalance."),
       concat("Investigate rank ", rank.rank,
              "'s device/host: thermal throttling, a slower GPU, NUMA/host placement, or an "
              "unbalanced data shard. Check for a hot node and rebalance or replace it.")});
}

void load_imbalance(const Figures& figures, Findings& out) {
  if (!figures.distributed || figures.distributed->straggler) return;
  const Distributed& d = *figures.distributed;
  if (d.variation < 0.15 || d.lost_fraction * 100 < 5) return;
  out.push_back(
      {"DIST.LOAD_IMBALANCE", Severity::medium, "Compute is imbalanced across ranks",
       sentence("Per-rank compute varies by CV=%.2f with no single persistent straggler. ",
                d.variation) +
           percent(d.lost_fraction, 1) +
           " of wall time is lost waiting at the all-reduce barrier " +
           sentence("(median sync skew %.1f ms/step).", d.skew_seconds * 1e3),
       "Balance per-rank work: even out shard sizes / sequence lengths, check for "
       "variable-cost batches, and avoid rank-dependent branches in the step."});
}

void comm_bound(const Figures& figures, Findings& out) {
  if (!figures.distributed || figures.distributed->mean_comm_fraction < 0.25) return;
  const double fraction = figures.distributed->mean_comm_fraction;
  out.push_back({"DIST.COMM_BOUND", fraction >= 0.45 ? Severity::high : Severity::medium,
                 "Communication dominates step time",
                 concat("Collective communication is ", percent(fraction),
                        " of step wall time across ", figures.distributed->ranks.size(),
                        " ranks — the gradient all-reduce is not hidden behind compute."),
                 "Overlap communication with backward (DDP gradient bucketing / `no_sync` for "
                 "accumulation), increase the per-step compute (larger local batch), enable "
                 "gradient compression, or check interconnect bandwidth (NVLink/InfiniBand vs "
                 "Ethernet)."});
}

void exposed_comm(const Figures& figures, Findings& out) {
  if (!figures.trace || figures.trace->communication_kernels == 0) return;
  const KernelTrace& t = *figures.trace;
  const double exposed = t.exposed_fraction() * 100;
  if (exposed < 5) return;
  out.push_back({"DIST.EXPOSED_COMM", exposed >= 15 ? Severity::high : Severity::medium,
                 "Communication is not overlapped with compute",
                 percent(t.exposed_fraction()) +
                     " of wall time is *exposed* communication — collective time that does not "
                     "overlap any compute kernel. Only " +
                     percent(t.overlap()) + " of the " +
                     sentence("%.1f ms of communication", t.communication_seconds * 1e3) +
                     " is hidden behind compute.",
                 "Improve compute/communication overlap: enable DDP gradient bucketing (tune "
                 "`bucket_cap_mb`), avoid `find_unused_parameters` stalls, overlap "
                 "optimizer/all-reduce, or increase per-GPU compute so backward lasts long enough "
                 "to hide the all-reduce."});
}

std::string hint_for(const std::string& line) {
  if (line == "compute_overhead")
    return "enable mixed precision (AMP/bf16), torch.compile, or fused kernels so compute "
           "approaches peak throughput";
  if (line == "data_stall")
    return "raise DataLoader num_workers, persistent_workers, pin_memory, and prefetch; move heavy "
           "transforms off the hot path";
  if (line == "communication")
    return "overlap the all-reduce with backward (DDP bucketing), or raise per-GPU compute so "
           "communication is hidden";
  return "profile the unattributed time — logging, checkpointing, host syncs, or eval inside the "
         "train loop";
}

std::string share_text(const BudgetLine& line) {
  return line.name + " " + percent(line.fraction);
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
      "Useful compute is " + percent(e.useful_fraction()) + " of wall (FLOPs at peak). ";
  out.push_back({e.mfu ? "EFFICIENCY.LOW_MFU" : "EFFICIENCY.RECOVERABLE",
                 is_high ? Severity::high : Severity::medium,
                 e.mfu ? "MFU is " + percent(*e.mfu) + " — " + percent(1 - e.useful_fraction()) +
                             " of wall is recoverable"
                       : percent(top.fraction) + " of wall time is recoverable (" + top.name + ")",
                 (e.mfu ? anchor : "") +
                     concat("Biggest recoverable line: ", top.name, " at ", percent(top.fraction),
                            sentence(" of wall (%.2fs over ", top.seconds), e.steps,
                            " steps). Top recoverable: ", joined(shares), "."),
                 "Start with " + top.name + ": " + hint_for(top.name) + "."});
}

void fragmentation(const Figures& figures, Findings& out) {
  const MemoryUse& m = figures.memory;
  if (!m.is_there || m.peak_alloc_bytes < 64 * kMiB || m.fragmentation < 0.20) return;
  out.push_back({"MEMORY.FRAGMENTATION", m.fragmentation >= 0.40 ? Severity::medium : Severity::low,
                 "High allocator fragmentation",
                 "On average " + percent(m.fragmentation) +
                     " of reserved device memory is not in use " +
                     sentence("(reserved peak %.0f MB vs alloc peak %.0f MB). ",
                              m.peak_reserved_bytes / kMiB, m.peak_alloc_bytes / kMiB) +
                     "Fragmentation wastes capacity and can trigger OOMs despite 'free' memory.",
                 "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; avoid wildly varying "
                 "tensor shapes; call torch.cuda.empty_cache() sparingly."});
}

void growth(const Figures& figures, Findings& out) {
  const MemoryUse& m = figures.memory;
  if (!m.is_there || m.steps < 20 || m.growth_bytes_per_step < kMiB) return;
  const double total = m.growth_bytes_per_step * static_cast<double>(m.steps);
  if (total < 0.01 * std::max(m.peak_alloc_bytes, 1.0)) return;
  out.push_back({"MEMORY.GROWTH", Severity::high, "Allocated memory grows steadily (possible leak)",
                 sentence("Allocated memory rises ~%.1f MB/step (~%.0f MB over ",
                          m.growth_bytes_per_step / kMiB, total / kMiB) +
                     concat(m.steps,
                            " steps). Steady growth in steady-state training usually means tensors "
                            "are retained across steps."),
                 "Detach/`.item()` metrics before accumulating; ensure you're not appending "
                 "graph-attached tensors to a list; check for retained activations or growing "
                 "caches."});
}

Finding bubble_beyond_ideal(const Pipeline& p) {
  return {"DIST.PIPELINE_BUBBLE", *p.excess() >= 0.15 ? Severity::high : Severity::medium,
          "Pipeline bubble is wasting accelerator time",
          concat("Pipeline idle (bubble) is ", percent(p.bubble), " across ",
                 p.stage_bubbles.size(), " stages, but the inherent GPipe minimum for m=",
                 *p.microbatches, " microbatches is only ", percent(*p.ideal_bubble),
                 sentence(" — %.0f points of *excess* bubble", *p.excess() * 100),
                 " from scheduling/imbalance, not from p and m."),
          "Reduce excess bubble: balance per-stage compute (split layers more evenly), check for a "
          "slow stage, or switch to an interleaved (1F1B) schedule."};
}

}  // namespace

std::vector<Finding> published_findings(const Pipeline& p) {
  if (p.ideal_bubble) return *p.excess() < 0.05 ? Findings() : Findings{bubble_beyond_ideal(p)};
  if (p.bubble < 0.25) return {};
  return {{"DIST.PIPELINE_BUBBLE", p.bubble >= 0.45 ? Severity::high : Severity::medium,
           "Pipeline bubble is wasting accelerator time",
           concat("Pipeline idle (bubble) is ", percent(p.bubble), " across ",
                  p.stage_bubbles.size(), " stages (stage ", p.idlest_stage,
                  " is idlest). Each idle stage is wasted accelerator time."),
           "Increase the number of microbatches to amortize warmup/cooldown (bubble ≈ "
           "(p-1)/(m+p-1)), balance per-stage compute, or use a 1F1B interleaved schedule."}};
}

std::vector<Finding> published_findings(const Figures& figures) {
  Findings out;
  for (const auto rule :
       {data_bound, backward_heavy, optimizer_heavy, jitter, diverged, no_progress, instability,
        straggler, load_imbalance, comm_bound, exposed_comm, low_efficiency, fragmentation, growth})
    rule(figures, out);
  std::ranges::stable_sort(out, std::less<>(), &Finding::severity);
  return out;
}

}  // namespace cox::diagnosis
