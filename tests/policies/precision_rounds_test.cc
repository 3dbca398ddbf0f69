// Formats follow the ranks' reports.
#include <string>
#include <vector>

#include "coordinator/testing/random.h"
#include "tests/policies/precision_job.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

constexpr const char* kAuto = "precision.format = auto\n";

// Returns a run whose blocks have all reached 8 bits.
SimulatedPrecisionJob in_8_bits(const std::string& more = {}) {
  SimulatedPrecisionJob run(precision_job(), kAuto + more);
  run.play(40);
  REQUIRE(run.in_force() == "8888");
  return run;
}

Fragment request(PrecisionRequest::What what, Precision format, std::uint32_t rounds,
                 std::uint16_t block = PrecisionRequest::kEveryBlock) {
  PrecisionRequest asked;
  asked.block = block;
  asked.what = what;
  asked.format = format;
  asked.rounds = rounds;
  return make_fragment(asked);
}

// Rank 2 sends one request in the next round.
void ask(SimulatedPrecisionJob& run, const Fragment& fragment) {
  run.adjust = [&](RankSignal& report) {
    if (report.rank == RankId(2)) report.fragment = fragment;
  };
  run.play();
  run.adjust = nullptr;
}

TEST_SUITE("policies.precision") {
  TEST_CASE("blocks go to 8 bits after patient good signals, those that gain most first") {
    SimulatedPrecisionJob run(precision_job(), kAuto);
    run.job.precision.blocks[2].step_us = {5000, 3000, 3000, 1000};
    run.play(15);
    CHECK(run.planned() == "bbbb");
    run.play();
    CHECK(run.planned() == "bb8b");
    CHECK(run.said(ReasonCode::precision_lowered) ==
          "block h.2 goes from bf16 to fp8: noise of gradients 2 of the signal (from 1 on), since "
          "round 1; 1000 us instead of 3000 us in bf16");
    run.play(30);
    CHECK(run.planned() == "8888");
  }

  TEST_CASE("signals that are not good, or not there, keep 16 bits") {
    SimulatedPrecisionJob run(precision_job(), kAuto);
    BlockEvidence evidence = good_evidence();
    SUBCASE("noise within the bands") {
      evidence.noise_sum = 2;
    }
    SUBCASE("underflow within the bands") {
      evidence.underflow = 80;
    }
    SUBCASE("no samples") {
      evidence = {};
    }
    SUBCASE("noise that is not finite") {
      evidence.noise_sum = HUGE_VALF;
    }
    run.evidence.assign(4, evidence);
    run.play(100);
    CHECK(run.planned() == "bbbb");
    const bool told = run.last(ReasonCode::precision_no_evidence) != nullptr;
    const bool is_silent = evidence.noise_count == 0;
    CHECK(told == is_silent);
  }

  TEST_CASE("one round of bad evidence brings 16 bits back in the plan of that round") {
    struct Trouble {
      const char* name;
      void (*make)(BlockEvidence&);
      const char* formats;
      ReasonCode code;
      const char* part;
    };
    for (const Trouble& trouble : {
             Trouble{"clipped", [](BlockEvidence& e) { e.saturated = 30; }, "8b88",
                     ReasonCode::precision_raised, "3 % of its values were clipped"},
             Trouble{"flushed", [](BlockEvidence& e) { e.underflow = 200; }, "8b88",
                     ReasonCode::precision_raised, "20 % of its values became zero"},
             Trouble{"quiet", [](BlockEvidence& e) { e.noise_sum = 0.4f; }, "8b88",
                     ReasonCode::precision_raised, "the noise of its gradients is 0.1 of"},
             Trouble{"overflow",
                     [](BlockEvidence& e) {
                       e.overflow_backward = 2;
                       e.rank_of_overflow = RankId(3);
                     },
                     "8b88", ReasonCode::precision_overflow,
                     "values of its backward pass on rank 3 were not finite (2)"},
             Trouble{"within the bands",
                     [](BlockEvidence& e) {
                       e.underflow = 100;
                       e.noise_sum = 2;
                       e.saturated = 1;
                     },
                     "8888", ReasonCode::precision_lowered, ""},
         }) {
      CAPTURE(trouble.name);
      SimulatedPrecisionJob run = in_8_bits();
      trouble.make(run.evidence[1]);
      run.play();
      CHECK(run.planned() == trouble.formats);
      CHECK(run.said(trouble.code).find(trouble.part) != std::string::npos);
      run.play(2);
      CHECK(run.in_force() == trouble.formats);
    }
  }

  TEST_CASE("after trouble a block cools down, twice as long each time") {
    SimulatedPrecisionJob run =
        in_8_bits("precision.cooldown_rounds = 50\nprecision.dwell_rounds = 20\n");
    std::vector<std::uint64_t> away;
    for (int time = 0; time < 4; ++time) {
      run.evidence[1].saturated = 500;
      run.play();
      run.evidence[1] = good_evidence();
      const std::uint64_t since = run.round;
      while (run.planned() != "8888" && run.round < since + 1000) run.play();
      away.push_back(run.round - since);
      run.play(30);
    }
    CHECK(away[0] >= 50);
    CHECK(away[0] < 60);
    CHECK(away[1] >= 100);
    CHECK(away[2] >= 200);
    CHECK(away[3] >= 400);
    CHECK(away[3] < 420);
  }

  TEST_CASE("overflow in bf16 goes to fp32, and back when the block has rested") {
    SimulatedPrecisionJob run(precision_job(),
                              "precision.format = auto\nprecision.forbid = *=fp8\n");
    run.play(3);
    run.evidence[3].overflow_backward = 1;
    run.evidence[3].rank_of_overflow = RankId(0);
    run.play();
    CHECK(run.planned() == "bbb3");
    run.evidence[3] = good_evidence();
    run.play(198);
    CHECK(run.planned() == "bbb3");
    run.play(10);
    CHECK(run.planned() == "bbbb");
  }

  TEST_CASE("fp16 is left when the scaler is at its floor, or for what no scale helps") {
    JobFacts job = precision_job();
    for (BlockFormats& block : job.precision.blocks) block.step_us = {1000, 1000, 500, 0};
    SimulatedPrecisionJob run(job, kAuto);
    REQUIRE(run.planned() == "hhhh");
    float scale = 1024;
    run.adjust = [&scale](RankSignal& report) { report.loss_scale = scale; };
    run.evidence[0].overflow_backward = 5;
    run.evidence[0].rank_of_overflow = RankId(1);
    run.play(5);
    CHECK(run.planned() == "hhhh");
    scale = 1;
    run.play();
    CHECK(run.planned() == "bhhh");
    run.evidence[0] = good_evidence();
    run.play(3);
    scale = 1024;
    run.evidence[2].overflow_forward = 1;
    run.play();
    CHECK(run.planned() == "bhbh");
  }

  TEST_CASE("a held block stays as it is, and that is told once") {
    SimulatedPrecisionJob run(precision_job(), "precision.format = fp8\n");
    run.evidence[0].saturated = 400;
    run.play(30);
    CHECK(run.planned() == "8888");
    int told = 0;
    for (const Reason& reason : run.reasons) {
      told += reason.code == ReasonCode::precision_raised ? 1 : 0;
    }
    CHECK(told == 1);
    CHECK(run.last(ReasonCode::precision_raised)->outcome == Outcome::vetoed);
  }

  TEST_CASE("requests force, forbid and release, for a while or for good") {
    SimulatedPrecisionJob run = in_8_bits();
    ask(run, request(PrecisionRequest::What::force, Precision::fp32, 20));
    CHECK(run.planned() == "3333");
    CHECK(run.said(ReasonCode::precision_requested) ==
          "blocks h.0 to head go from fp8 to fp32: the program asks for fp32");
    run.play(18);
    CHECK(run.planned() == "3333");
    run.play(2);
    CHECK(run.planned() == "bbbb");
    run.play(40);
    REQUIRE(run.planned() == "8888");
    ask(run, request(PrecisionRequest::What::forbid, Precision::fp8, 0, 1));
    CHECK(run.planned() == "8b88");
    run.play(300);
    CHECK(run.planned() == "8b88");
    ask(run, request(PrecisionRequest::What::release, Precision::fp32, 0));
    run.play(3);
    CHECK(run.planned() == "8888");
  }

  TEST_CASE("requests that cannot be met are told and change nothing") {
    JobFacts job = precision_job();
    job.capabilities.precisions = 3;
    SimulatedPrecisionJob run(job, kAuto);
    ask(run, request(PrecisionRequest::What::force, Precision::fp16, 0));
    CHECK(run.said(ReasonCode::not_capable).find("wants fp16 for all blocks: this job cannot") !=
          std::string::npos);
    ask(run, request(PrecisionRequest::What::force, Precision::fp32, 0, 77));
    CHECK(run.said(ReasonCode::precision_requested).find("block 77: this job has 4 blocks") !=
          std::string::npos);
    ask(run, request(PrecisionRequest::What::forbid, Precision::fp32, 0));
    CHECK(run.planned() == "bbbb");
  }

  TEST_CASE("a rank that loses its time in computing has its costliest blocks go first") {
    SimulatedPrecisionJob run(precision_job(), kAuto);
    run.job.precision.blocks[3].step_us = {9000, 5000, 5000, 4950};
    run.job.precision.blocks[3].step_us[3] = 4800;
    run.adjust = [](RankSignal& report) {
      if (report.rank == RankId(1)) report.phase_seconds[2] = 0.16f;
    };
    run.play(13);  // a rank is named after stragglers.min_rounds = 12 reports
    CHECK(run.planned() == "bbb8");
    CHECK(run.said(ReasonCode::precision_straggler).find("rank 1 is 30 % slow") !=
          std::string::npos);
  }

  TEST_CASE("jitter of timings changes nothing, and neither does a rank that waits for data") {
    SimulatedPrecisionJob run(precision_job(), kAuto);
    testing::Random random(5);
    run.evidence.assign(4, {});
    run.adjust = [&random](RankSignal& report) {
      for (float& seconds : report.phase_seconds) seconds = static_cast<float>(random.uniform());
      if (report.rank == RankId(1)) report.phase_seconds[0] = 9;
    };
    run.play(300);
    CHECK(run.planned() == "bbbb");
  }

  TEST_CASE("ranks that are missing or silent change nothing") {
    SimulatedPrecisionJob run = in_8_bits();
    run.adjust = [](RankSignal& report) { report.rank = RankId(-1); };
    run.evidence[0].saturated = 900;
    run.play(50);
    CHECK(run.planned() == "8888");
  }

  TEST_CASE("short memory brings bf16 instead of fp32, and never fp16") {
    JobFacts job = precision_job();
    for (BlockFormats& block : job.precision.blocks) block.step_us = {1000, 1100, 1100, 1100};
    job.precision.blocks[0].step_us = {1000, 500, 400, 0};
    SimulatedPrecisionJob run(job, kAuto);
    REQUIRE(run.planned() == "b333");
    run.adjust = [](RankSignal& report) {
      report.memory_limit_bytes = 1000;
      report.memory_peak_bytes = report.rank == RankId(3) ? 990 : 100;
    };
    run.play(3);
    CHECK(run.planned() == "bbbb");
    CHECK(run.said(ReasonCode::precision_lowered).find("99.0 % of its memory") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace cox::test
