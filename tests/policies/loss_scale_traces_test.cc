// A small part of benchmark N2: adversarial traces against GradScaler's rule.
#include "tests/policies/scale_trial.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

constexpr std::uint64_t kTraces = 25;  // for each kind

TEST_SUITE("policies.loss_scale") {
  TEST_CASE(
      "on adversarial traces few steps are skipped that a scale could save, and all recover") {
    ScaleTally torch;
    ScaleTally ours;
    for (std::size_t k = 0; k < kTraceKinds; ++k) {
      const auto kind = static_cast<TraceKind>(k);
      for (std::uint64_t s = 0; s < kTraces; ++s) {
        torch += try_rule(ScaleRule::grad_scaler, kind, 1 + 1000 * k + s);
        const ScaleTally tally = try_rule(ScaleRule::ours, kind, 1 + 1000 * k + s);
        INFO(to_string(kind) << ", seed " << 1 + 1000 * k + s);
        CHECK(tally.not_recovered == 0);
        ours += tally;
      }
    }
    MESSAGE("skipped although a scale could have saved them: GradScaler's rule "
            << torch.savable() << ", ours " << ours.savable()
            << "; not finite under any scale: " << ours.unsavable);
    CHECK(torch.savable() >= 4 * ours.savable());
    CHECK(ours.unsavable == torch.unsavable);
    CHECK(ours.blurred < torch.blurred / 4);
    CHECK(ours.disagreements == 0);
  }

  TEST_CASE("the trial sees a rule that does not recover") {
    ScaleTally torch;
    for (std::uint64_t s = 1; s <= 10; ++s) {
      torch += try_rule(ScaleRule::grad_scaler, TraceKind::infinite_while, s);
    }
    CHECK(torch.not_recovered > 0);
    CHECK(torch.unsavable > 0);
  }
}

}  // namespace
}  // namespace cox::test
