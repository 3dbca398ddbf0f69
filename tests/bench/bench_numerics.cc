// N2: rules of loss scaling on adversarial traces of gradients, GradScaler's beside ours.
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/line.h"
#include "tests/policies/scale_trial.h"

namespace {

using namespace cox;
using bench::Better;
using bench::Line;
using test::ScaleRule;
using test::ScaleTally;
using test::TraceKind;

constexpr std::size_t kKinds = test::kTraceKinds;

struct Both {
  ScaleTally torch;
  ScaleTally ours;
};

double ratio_of(std::uint64_t torch, std::uint64_t ours) {
  return static_cast<double>(torch) / static_cast<double>(ours > 0 ? ours : 1);
}

// Tries `traces` of every kind. Threads share the kinds, which changes no figure.
std::vector<Both> try_all(std::uint64_t traces) {
  std::vector<Both> tallies(kKinds);
  std::vector<std::jthread> threads;
  const std::size_t count = std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t t = 0; t < count; ++t) {
    threads.emplace_back([&tallies, traces, t, count] {
      for (std::size_t k = t; k < kKinds; k += count) {
        for (std::uint64_t s = 0; s < traces; ++s) {
          const std::uint64_t seed = 1 + 1'000'000 * k + s;
          const auto kind = static_cast<TraceKind>(k);
          tallies[k].torch += test::try_rule(ScaleRule::grad_scaler, kind, seed);
          tallies[k].ours += test::try_rule(ScaleRule::ours, kind, seed);
        }
      }
    });
  }
  threads.clear();
  return tallies;
}

Line described(Line line, const Both& both, std::uint64_t traces) {
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  line.with("traces", number(traces))
      .with("steps", number(both.ours.steps))
      .with("skipped, GradScaler's rule", number(both.torch.savable()))
      .with("skipped, ours", number(both.ours.savable()))
      .with("not finite under any scale", number(both.ours.unsavable))
      .with("more than 15 % to zero, GradScaler's rule", number(both.torch.blurred))
      .with("more than 15 % to zero, ours", number(both.ours.blurred))
      .with("not recovered, GradScaler's rule", number(both.torch.not_recovered))
      .with("not recovered, ours", number(both.ours.not_recovered));
  return line;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == bench::Effort::quick;
  const std::uint64_t traces = is_quick ? 60 : 11'112;  // for each of 9 kinds
  const std::vector<Both> tallies = try_all(traces);
  Both all;
  for (std::size_t k = 0; k < kKinds; ++k) {
    const Both& both = tallies[k];
    all.torch += both.torch;
    all.ours += both.ours;
    described(Line("N2", ratio_of(both.torch.savable(), both.ours.savable()), "ratio")
                  .with("figure", std::string("steps skipped that a scale could save: ") +
                                      std::string(test::to_string(static_cast<TraceKind>(k)))),
              both, traces)
        .print();
  }
  described(Line("N2", ratio_of(all.torch.savable(), all.ours.savable()), "ratio")
                .limit(5, Better::higher)
                .with("figure", "steps skipped that a scale could save: GradScaler's rule to ours"),
            all, traces * kKinds)
      .print();
  Line("N2", ratio_of(all.torch.skipped, all.ours.skipped), "ratio")
      .with("figure", "all skipped steps, those included that are not finite under any scale")
      .print();
  Line("N2", static_cast<double>(all.ours.not_recovered), "traces")
      .limit(0)
      .with("figure", "scale not recovered 4500 steps after the trouble")
      .print();
  Line("N2", static_cast<double>(all.ours.disagreements), "steps")
      .limit(0)
      .with("figure", "ranks with different scalers")
      .print();
  return 0;
}
