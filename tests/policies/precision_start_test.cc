// The first formats of blocks, before their values are known.
#include <algorithm>
#include <string>

#include "tests/policies/precision_job.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

struct Case {
  const char* settings;
  const char* formats;
  ReasonCode code;
  std::string part;  // a part of the reason with this code
};

void expect(const Case& c, JobFacts job = precision_job()) {
  CAPTURE(c.settings);
  const SimulatedPrecisionJob run(std::move(job), c.settings);
  CHECK(run.planned() == c.formats);
  INFO(run.said(c.code));
  CHECK(run.has_said(c.code, c.part));
}

TEST_SUITE("policies.precision") {
  TEST_CASE("a format that is given is what blocks get, and rules win over it") {
    for (const Case& c : {
             Case{"precision.format = bf16", "bbbb", ReasonCode::precision_forced,
                  "blocks h.0 to head run in bf16: precision.format is bf16"},
             Case{"precision.format = fp16", "hhhh", ReasonCode::precision_forced, "fp16"},
             Case{"precision.format = fp8", "8888", ReasonCode::precision_forced, "fp8"},
             Case{"precision.format = fp32\nprecision.mode = on", "3333",
                  ReasonCode::precision_forced, "fp32"},
             Case{"precision.force = h.*=bf16,h.1=fp16", "bhb3", ReasonCode::precision_forced,
                  "block head runs in fp32: precision.format is fp32"},
             Case{"precision.format = fp8\nprecision.forbid = head=fp8", "888b",
                  ReasonCode::precision_forbidden,
                  "block head runs in bf16: precision.format is fp8, but precision.forbid has "
                  "head=fp8"},
             Case{"precision.format = fp16\nprecision.forbid = *=fp16,h.*=bf16", "333b",
                  ReasonCode::precision_forbidden, "blocks h.0 to h.2 run in fp32"},
         }) {
      expect(c);
    }
  }

  TEST_CASE("auto starts in the fastest safe format of 16 bits") {
    const auto with_times = [](BlockFormats block) {
      JobFacts job = precision_job();
      job.precision.blocks[1] = block;
      return job;
    };
    expect({"precision.format = auto", "bbbb", ReasonCode::precision_start,
            "blocks h.0 to head start in bf16: 2000 us instead of 4000 us in fp32"});
    const Case bf16{"precision.format = auto", "bbbb", ReasonCode::precision_start,
                    "start in bf16: 1000 us instead of 2000 us in fp32"};
    expect(bf16, with_times({{1000, 900, 300, 0}}));
    expect({"precision.format = auto", "bhbb", ReasonCode::precision_start,
            "block h.1 starts in fp16: 500 us instead of 1000 us in fp32; not in bf16: bf16 takes "
            "990 us"},
           with_times({{1000, 990, 500, 0}}));
    expect({"precision.format = auto", "b3bb", ReasonCode::precision_not_faster,
            "block h.1 stays in fp32: bf16 takes 990 us, fp32 1000 us, and less than 2.0 % is no "
            "gain"},
           with_times({{1000, 990, 2000, 0}}));
    expect({"precision.format = auto\nprecision.forbid = *=bf16", "hhhh",
            ReasonCode::precision_start, "precision.forbid has *=bf16"});
  }

  TEST_CASE("auto takes nothing that was not measured, or that the devices only imitate") {
    JobFacts job = precision_job();
    job.precision = {};
    expect(
        {"precision.format = auto", "3333", ReasonCode::precision_no_evidence, "was not measured"},
        job);
    expect({"precision.format = auto\nprecision.emulate = on", "bbbb", ReasonCode::precision_start,
            "start in bf16"},
           job);
    job = precision_job();
    job.precision.emulated = only(Precision::bf16) | only(Precision::fp16);
    expect({"precision.format = auto", "3333", ReasonCode::precision_not_faster,
            "the devices only imitate bf16 and precision.emulate is off"},
           job);
  }

  TEST_CASE("formats that the job cannot apply are clamped, and that is told") {
    JobFacts job = precision_job();
    job.capabilities.precisions = only(Precision::fp32) | only(Precision::bf16);
    expect({"precision.format = fp8", "bbbb", ReasonCode::not_capable,
            "precision.format is fp8, but this job cannot apply fp8"},
           job);
    expect(
        {"precision.force = head=fp16", "333b", ReasonCode::not_capable, "block head runs in bf16"},
        job);
    expect({"precision.format = auto", "bbbb", ReasonCode::not_capable,
            "will not go to 8 bits: this job cannot apply fp8"},
           job);
  }

  TEST_CASE("off and observe leave every block in fp32") {
    for (const char* mode : {"off", "observe"}) {
      SimulatedPrecisionJob run(precision_job(),
                                "precision.format = bf16\nprecision.mode = " + std::string(mode));
      run.play(5);
      CHECK(run.planned() == "3333");
    }
  }

  TEST_CASE("a job that goes on keeps 8 bits, and rests on from trouble") {
    SimulatedPrecisionJob run(precision_job(), "precision.format = auto");
    run.play(40);
    run.evidence[1].saturated = 50;
    run.play(6);
    run.evidence[1] = good_evidence();
    run.evidence[2].overflow_forward = 1;
    run.play(3);
    run.play(6);
    REQUIRE(run.planned() == "8b38");
    run.job.incarnation = 2;
    Refitted refitted = refit(run.state, run.job);
    const Begun begun = begin_job(run.job, run.config, {std::make_shared<PrecisionPolicy>()},
                                  std::move(refitted.state));
    CHECK(letters_of(begun.state.plan.precision) == "8b38");
    CHECK(begun.state.plan.id.number == 0);
  }

  TEST_CASE("a job that goes on starts with what the program had asked for") {
    SimulatedPrecisionJob run(precision_job(), "precision.format = bf16");
    PrecisionRequest asked;
    asked.block = 2;
    asked.format = Precision::fp32;
    run.adjust = [&](RankSignal& report) {
      if (report.rank == RankId(1)) report.fragment = make_fragment(asked);
    };
    run.play();
    run.adjust = nullptr;
    run.play(5);
    REQUIRE(run.planned() == "bb3b");
    run.job.incarnation = 2;
    Refitted refitted = refit(run.state, run.job);
    const Begun begun = begin_job(run.job, run.config, {std::make_shared<PrecisionPolicy>()},
                                  std::move(refitted.state));
    CHECK(letters_of(begun.state.plan.precision) == "bb3b");
    const bool is_said = std::any_of(begun.reasons.begin(), begun.reasons.end(), [](const auto& r) {
      return r.text == "block h.2 runs in fp32: the program asks for fp32";
    });
    CHECK(is_said);
  }
}

}  // namespace
}  // namespace cox::test
