// The benchmark of E5 runs many more plans.
#include "tests/sdk/memory/random_plans.h"

#include <ATen/Parallel.h>

#include <map>

#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using cox::test::PlanTrials;
using cox::test::Way;

constexpr int kTrials = 5;

TEST_SUITE("random plans") {
  TEST_CASE("seven models under plans that mix actions, levels and formats have the bits of keep") {
    at::set_num_threads(1);
    const TempFolder tier;
    std::map<std::string, PlanTrials> of_model;
    int plans = 0;
    for (const PlanTrials& trials : cox::test::try_random_plans(1, kTrials, tier.path())) {
      for (const std::string& text : trials.different) FAIL_CHECK(text);
      CAPTURE(trials.model);
      CAPTURE(std::string(cox::test::name_of(trials.way)));
      // CPU kernels of some models support one differentiation only.
      if (trials.way != Way::twice_differentiated) CHECK(trials.refused == 0);
      PlanTrials& sum = of_model[trials.model];
      sum.dropped += trials.dropped;
      sum.full += trials.full;
      sum.narrow += trials.narrow;
      sum.offloaded += trials.offloaded;
      sum.plans += trials.plans;
      sum.refused += trials.refused;
      plans += trials.plans;
    }
    CHECK(of_model.size() == 7);
    CHECK(plans >= 300);
    for (const auto& [model, sum] : of_model) {
      MESSAGE(model << ": " << sum.plans << " plans, " << sum.refused << " trainings refused, "
                    << sum.dropped << " tensors dropped, " << sum.full << " blocks recomputed, "
                    << sum.narrow << " in narrow formats, " << sum.offloaded << " bytes offloaded");
      CAPTURE(model);
      CHECK(sum.dropped > 0);
      CHECK(sum.full > 0);
      CHECK(sum.narrow > 0);
      CHECK(sum.offloaded > 0);
    }
  }
}
