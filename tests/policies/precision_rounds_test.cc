// How formats follow what the ranks report.
#include <string>
#include <vector>

#include "coordinator/testing/random.h"
#include "tests/policies/precision_game.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

constexpr const char* kAuto = "precision.format = auto\n";

// A game in which all blocks have come to 8 bits.
PrecisionGame in_8_bits(const std::string& more = {}) {
  PrecisionGame game(precision_job(), kAuto + more);
  game.play(40);
  REQUIRE(game.in_force() == "8888");
  return game;
}

Fragment request(PrecisionRequest::What what, Precision format, std::uint32_t rounds,
                 std::uint16_t block = PrecisionRequest::kEveryBlock) {
  PrecisionRequest wish;
  wish.block = block;
  wish.what = what;
  wish.format = format;
  wish.rounds = rounds;
  return make_fragment(wish);
}

// Rank 2 asks once, in the next round.
void ask(PrecisionGame& game, const Fragment& fragment) {
  game.adjust = [&](RankSignal& report) {
    if (report.rank == RankId(2)) report.fragment = fragment;
  };
  game.play();
  game.adjust = nullptr;
}

TEST_SUITE("policies.precision") {
  TEST_CASE("blocks go to 8 bits after patient good signals, those that gain most first") {
    PrecisionGame game(precision_job(), kAuto);
    game.job.precision.blocks[2].step_us = {5000, 3000, 3000, 1000};
    game.play(15);
    CHECK(game.planned() == "bbbb");
    game.play();
    CHECK(game.planned() == "bb8b");
    CHECK(game.said(ReasonCode::precision_lowered) ==
          "block h.2 goes from bf16 to fp8: noise of gradients 2 of the signal (from 1 on), since "
          "round 1; 1000 us instead of 3000 us in bf16");
    game.play(30);
    CHECK(game.planned() == "8888");
  }

  TEST_CASE("signals that are not good, or not there, keep 16 bits") {
    PrecisionGame game(precision_job(), kAuto);
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
    game.evidence.assign(4, evidence);
    game.play(100);
    CHECK(game.planned() == "bbbb");
    const bool told = game.last(ReasonCode::precision_no_evidence) != nullptr;
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
      PrecisionGame game = in_8_bits();
      trouble.make(game.evidence[1]);
      game.play();
      CHECK(game.planned() == trouble.formats);
      CHECK(game.said(trouble.code).find(trouble.part) != std::string::npos);
      game.play(2);
      CHECK(game.in_force() == trouble.formats);
    }
  }

  TEST_CASE("after trouble a block cools down, twice as long each time") {
    PrecisionGame game = in_8_bits("precision.cooldown_rounds = 50\nprecision.dwell_rounds = 20\n");
    std::vector<std::uint64_t> away;
    for (int time = 0; time < 4; ++time) {
      game.evidence[1].saturated = 500;
      game.play();
      game.evidence[1] = good_evidence();
      const std::uint64_t since = game.round;
      while (game.planned() != "8888" && game.round < since + 1000) game.play();
      away.push_back(game.round - since);
      game.play(30);
    }
    CHECK(away[0] >= 50);
    CHECK(away[0] < 60);
    CHECK(away[1] >= 100);
    CHECK(away[2] >= 200);
    CHECK(away[3] >= 400);
    CHECK(away[3] < 420);
  }

  TEST_CASE("overflow in bf16 goes to fp32, and back when the block has rested") {
    PrecisionGame game(precision_job(), "precision.format = auto\nprecision.forbid = *=fp8\n");
    game.play(3);
    game.evidence[3].overflow_backward = 1;
    game.evidence[3].rank_of_overflow = RankId(0);
    game.play();
    CHECK(game.planned() == "bbb3");
    game.evidence[3] = good_evidence();
    game.play(198);
    CHECK(game.planned() == "bbb3");
    game.play(10);
    CHECK(game.planned() == "bbbb");
  }

  TEST_CASE("fp16 is left when the scaler is at its floor, or for what no scale helps") {
    JobFacts job = precision_job();
    for (BlockFormats& block : job.precision.blocks) block.step_us = {1000, 1000, 500, 0};
    PrecisionGame game(job, kAuto);
    REQUIRE(game.planned() == "hhhh");
    float scale = 1024;
    game.adjust = [&scale](RankSignal& report) { report.loss_scale = scale; };
    game.evidence[0].overflow_backward = 5;
    game.evidence[0].rank_of_overflow = RankId(1);
    game.play(5);
    CHECK(game.planned() == "hhhh");
    scale = 1;
    game.play();
    CHECK(game.planned() == "bhhh");
    game.evidence[0] = good_evidence();
    game.play(3);
    scale = 1024;
    game.evidence[2].overflow_forward = 1;
    game.play();
    CHECK(game.planned() == "bhbh");
  }

  TEST_CASE("a held block stays as it is, and that is told once") {
    PrecisionGame game(precision_job(), "precision.format = fp8\n");
    game.evidence[0].saturated = 400;
    game.play(30);
    CHECK(game.planned() == "8888");
    int told = 0;
    for (const Reason& reason : game.reasons) {
      told += reason.code == ReasonCode::precision_raised ? 1 : 0;
    }
    CHECK(told == 1);
    CHECK(game.last(ReasonCode::precision_raised)->outcome == Outcome::vetoed);
  }

  TEST_CASE("requests force, forbid and release, for a while or for good") {
    PrecisionGame game = in_8_bits();
    ask(game, request(PrecisionRequest::What::force, Precision::fp32, 20));
    CHECK(game.planned() == "3333");
    CHECK(game.said(ReasonCode::precision_requested) ==
          "blocks h.0 to head go from fp8 to fp32: the program asks for fp32");
    game.play(18);
    CHECK(game.planned() == "3333");
    game.play(2);
    CHECK(game.planned() == "bbbb");
    game.play(40);
    REQUIRE(game.planned() == "8888");
    ask(game, request(PrecisionRequest::What::forbid, Precision::fp8, 0, 1));
    CHECK(game.planned() == "8b88");
    game.play(300);
    CHECK(game.planned() == "8b88");
    ask(game, request(PrecisionRequest::What::release, Precision::fp32, 0));
    game.play(3);
    CHECK(game.planned() == "8888");
  }

  TEST_CASE("requests that cannot be met are told and change nothing") {
    JobFacts job = precision_job();
    job.capabilities.precisions = 3;
    PrecisionGame game(job, kAuto);
    ask(game, request(PrecisionRequest::What::force, Precision::fp16, 0));
    CHECK(game.said(ReasonCode::not_capable).find("wants fp16 for all blocks: this job cannot") !=
          std::string::npos);
    ask(game, request(PrecisionRequest::What::force, Precision::fp32, 0, 77));
    CHECK(game.said(ReasonCode::precision_requested).find("block 77: this job has 4 blocks") !=
          std::string::npos);
    ask(game, request(PrecisionRequest::What::forbid, Precision::fp32, 0));
    CHECK(game.planned() == "bbbb");
  }

  TEST_CASE("a rank that loses its time in computing has its costliest blocks go first") {
    PrecisionGame game(precision_job(), kAuto);
    game.job.precision.blocks[3].step_us = {9000, 5000, 5000, 4950};
    game.job.precision.blocks[3].step_us[3] = 4800;
    game.adjust = [](RankSignal& report) {
      if (report.rank == RankId(1)) report.phase_seconds[2] = 0.16f;
    };
    game.play(9);
    CHECK(game.planned() == "bbb8");
    CHECK(game.said(ReasonCode::precision_straggler).find("rank 1 is 30 % slow") !=
          std::string::npos);
  }

  TEST_CASE("jitter of timings changes nothing, and neither does a rank that waits for data") {
    PrecisionGame game(precision_job(), kAuto);
    testing::Random random(5);
    game.evidence.assign(4, {});
    game.adjust = [&random](RankSignal& report) {
      for (float& seconds : report.phase_seconds) seconds = static_cast<float>(random.uniform());
      if (report.rank == RankId(1)) report.phase_seconds[0] = 9;
    };
    game.play(300);
    CHECK(game.planned() == "bbbb");
  }

  TEST_CASE("ranks that are missing or silent change nothing") {
    PrecisionGame game = in_8_bits();
    game.adjust = [](RankSignal& report) { report.rank = RankId(-1); };
    game.evidence[0].saturated = 900;
    game.play(50);
    CHECK(game.planned() == "8888");
  }

  TEST_CASE("short memory brings bf16 instead of fp32, and never fp16") {
    JobFacts job = precision_job();
    for (BlockFormats& block : job.precision.blocks) block.step_us = {1000, 1100, 1100, 1100};
    job.precision.blocks[0].step_us = {1000, 500, 400, 0};
    PrecisionGame game(job, kAuto);
    REQUIRE(game.planned() == "b333");
    game.adjust = [](RankSignal& report) {
      report.memory_limit_bytes = 1000;
      report.memory_peak_bytes = report.rank == RankId(3) ? 990 : 100;
    };
    game.play(3);
    CHECK(game.planned() == "bbbb");
    CHECK(game.said(ReasonCode::precision_lowered).find("99.0 % of its memory") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace cox::test
