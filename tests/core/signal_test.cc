#include "coordinator/core/signal.h"

#include <cmath>
#include <limits>
#include <span>
#include <string>

#include <doctest/doctest.h>

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

cox::RankSignal sealed_signal() {
  cox::RankSignal s;
  s.rank = cox::RankId(3);
  s.round = cox::RoundId(17);
  s.loss = 2.5;
  s.weight = 8;
  cox::seal(s);
  return s;
}

// Small whole numbers, so that sums are exact in any order.
cox::RankSignal report(std::uint32_t n) {
  cox::RankSignal s;
  s.rank = cox::RankId(1);
  s.round = cox::RoundId(n);
  s.rounds = n;
  s.samples = 10 * n;
  s.tokens = 1000 * n;
  s.wall_seconds = n;
  s.reduction_seconds = static_cast<float>(4 * n);
  s.reduction_exposed_seconds = static_cast<float>(n);
  s.flops = static_cast<float>(64 * n);
  s.waiting_seconds = static_cast<float>(n);
  s.recompute_seconds = static_cast<float>(2 * n);
  s.save_seconds = static_cast<float>(3 * n);
  s.weight = n;
  s.loss = 2;
  s.nonfinite_values = n;
  s.memory_peak_bytes = 100 + n % 3;
  for (std::size_t p = 0; p < cox::kPhases; ++p) s.phase_seconds[p] = static_cast<float>(n + p);
  return s;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("a sealed signal passes the check, and a change of any byte fails it") {
    const cox::RankSignal good = sealed_signal();
    REQUIRE(cox::check(good).ok());
    for (std::size_t i = 0; i < sizeof good; ++i) {
      cox::RankSignal bad = good;
      std::as_writable_bytes(std::span(&bad, 1))[i] ^= std::byte{0x40};
      CAPTURE(i);
      CHECK(cox::check(bad).code() == cox::StatusCode::data_loss);
    }
  }

  TEST_CASE("a sealed signal with impossible fields is damaged all the same") {
    cox::RankSignal s = sealed_signal();
    SUBCASE("rank below zero") {
      s.rank = cox::RankId(-1);
    }
    SUBCASE("rank beyond the largest world") {
      s.rank = cox::RankId(cox::kMaxRanks);
    }
    SUBCASE("fragment larger than its room") {
      s.fragment.size = 61;
    }
    SUBCASE("another version") {
      s.version = 2;
    }
    cox::seal(s);
    CHECK(cox::check(s).code() == cox::StatusCode::data_loss);
  }

  TEST_CASE("merging reports adds what adds up, whatever is merged first") {
    const cox::RankSignal a = report(1), b = report(2), c = report(5);
    const cox::RankSignal left = cox::merge_reports(cox::merge_reports(a, b), c);
    const cox::RankSignal right = cox::merge_reports(a, cox::merge_reports(b, c));
    CHECK(left.rounds == 8);
    CHECK(left.samples == 80);
    CHECK(left.tokens == 8000);
    CHECK(left.wall_seconds == 8);
    CHECK(left.reduction_seconds == 32);
    CHECK(left.reduction_exposed_seconds == 8);
    CHECK(left.flops == 512);
    CHECK(left.waiting_seconds == 8);
    CHECK(left.recompute_seconds == 16);
    CHECK(left.save_seconds == 24);
    CHECK(left.weight == 8);
    CHECK(left.loss == 2);
    CHECK(left.memory_peak_bytes == 102);
    CHECK(left.round == c.round);
    CHECK(right.rounds == left.rounds);
    CHECK(right.samples == left.samples);
    CHECK(right.wall_seconds == left.wall_seconds);
    CHECK(right.reduction_seconds == left.reduction_seconds);
    CHECK(right.reduction_exposed_seconds == left.reduction_exposed_seconds);
    CHECK(right.flops == left.flops);
    CHECK(right.weight == left.weight);
    CHECK(right.nonfinite_values == left.nonfinite_values);
    CHECK(right.phase_seconds == left.phase_seconds);
  }

  TEST_CASE("merging weighs losses and never lets a lost one spoil a finite one") {
    struct Row {
      double loss_a, weight_a, loss_b, weight_b, loss, weight;
    };
    const Row rows[] = {{2, 1, 4, 3, 3.5, 4},
                        {kNan, 1, 4, 3, 4, 3},
                        {2, 1, kNan, 3, 2, 1},
                        {2, 0, 4, 0, 4, 0},
                        {2, 5, 0, 0, 2, 5}};
    for (const Row& row : rows) {
      cox::RankSignal a, b;
      a.loss = row.loss_a;
      a.weight = row.weight_a;
      b.loss = row.loss_b;
      b.weight = row.weight_b;
      const cox::RankSignal merged = cox::merge_reports(a, b);
      CHECK(merged.loss == row.loss);
      CHECK(merged.weight == row.weight);
    }
    cox::RankSignal a, b;
    a.loss = b.loss = kNan;
    CHECK(std::isnan(cox::merge_reports(a, b).loss));
  }

  TEST_CASE("merging keeps events of both reports and states of the later one") {
    cox::RankSignal a, b;
    a.set(cox::SignalFlag::step_skipped);
    a.set(cox::SignalFlag::step_repeated);
    a.set(cox::SignalFlag::full_plan_wanted);
    a.fragment.kind = cox::FragmentKind::block_profile;
    b.set(cox::SignalFlag::finished);
    const cox::RankSignal merged = cox::merge_reports(a, b);
    CHECK(merged.has(cox::SignalFlag::step_skipped));
    CHECK(merged.has(cox::SignalFlag::step_repeated));
    CHECK(merged.has(cox::SignalFlag::finished));
    CHECK_FALSE(merged.has(cox::SignalFlag::full_plan_wanted));
    CHECK(merged.fragment.kind == cox::FragmentKind::block_profile);
  }

  TEST_CASE("sums of counts stop at their largest value instead of wrapping") {
    cox::RankSignal a = report(1), b = report(1);
    a.samples = std::numeric_limits<std::uint32_t>::max() - 3;
    CHECK(cox::merge_reports(a, b).samples == std::numeric_limits<std::uint32_t>::max());
  }

  TEST_CASE("a block profile travels in a fragment and comes out the same") {
    cox::BlockProfile profile;
    profile.block = cox::BlockId(3);
    profile.blocks = 12;
    profile.saved_bytes = 1 << 20;
    profile.forward_seconds = 0.5f;
    const cox::Result<cox::BlockProfile> read =
        cox::read_block_profile(cox::make_fragment(profile));
    REQUIRE(read.ok());
    CHECK(read->block == profile.block);
    CHECK(read->saved_bytes == profile.saved_bytes);
    CHECK(read->forward_seconds == profile.forward_seconds);
  }

  TEST_CASE("a fragment that is no sound block profile is refused") {
    cox::BlockProfile profile;
    profile.block = cox::BlockId(3);
    profile.blocks = 12;
    cox::Fragment fragment;
    SUBCASE("another kind") {
      fragment.kind = cox::FragmentKind::none;
    }
    SUBCASE("another size") {
      fragment = cox::make_fragment(profile);
      fragment.size = 10;
    }
    SUBCASE("a block outside the model") {
      profile.block = cox::BlockId(12);
      fragment = cox::make_fragment(profile);
    }
    SUBCASE("a time that is not finite") {
      profile.backward_seconds = std::numeric_limits<float>::infinity();
      fragment = cox::make_fragment(profile);
    }
    CHECK(cox::read_block_profile(fragment).status().code() == cox::StatusCode::data_loss);
  }

  TEST_CASE("a block's failure travels in a fragment, and its words end") {
    cox::BlockFailure failure;
    failure.block = cox::BlockId(11);
    failure.blocks = 12;
    failure.action = cox::MemoryAction::offload;
    failure.what.fill('x');
    const auto read = cox::read_block_failure(cox::make_fragment(failure));
    REQUIRE(read.ok());
    CHECK(read->block == failure.block);
    CHECK(read->action == cox::MemoryAction::offload);
    CHECK(std::string(read->what.data()) == std::string(46, 'x'));
  }

  TEST_CASE("a failure tells the level of recompute") {
    cox::BlockFailure failure;
    failure.blocks = 1;
    for (unsigned n = 1; n <= cox::kRecomputeLevels; ++n) {
      failure.action = cox::recompute_level(n);
      CHECK(cox::read_block_failure(cox::make_fragment(failure))->action == failure.action);
    }
  }

  TEST_CASE("a fragment that is no sound failure is refused") {
    cox::BlockFailure failure;
    failure.block = cox::BlockId(3);
    failure.blocks = 12;
    cox::Fragment fragment = cox::make_fragment(failure);
    REQUIRE(cox::read_block_failure(fragment).ok());
    SUBCASE("another kind") {
      fragment = cox::make_fragment(cox::BlockProfile{});
    }
    SUBCASE("another size") {
      fragment.size = 10;
    }
    SUBCASE("a block outside the model") {
      failure.block = cox::BlockId(12);
      fragment = cox::make_fragment(failure);
    }
    SUBCASE("keep cannot fail") {
      failure.action = cox::MemoryAction::keep;
      fragment = cox::make_fragment(failure);
    }
    SUBCASE("an action that is none") {
      failure.action = static_cast<cox::MemoryAction>(11);
      fragment = cox::make_fragment(failure);
    }
    CHECK(cox::read_block_failure(fragment).status().code() == cox::StatusCode::data_loss);
  }

  TEST_CASE("a failure is not lost behind a profile when reports are merged") {
    cox::RankSignal failed, profiled;
    cox::BlockFailure failure;
    failure.blocks = 12;
    failed.fragment = cox::make_fragment(failure);
    profiled.fragment = cox::make_fragment(cox::BlockProfile{});
    CHECK(cox::merge_reports(failed, profiled).fragment.kind == cox::FragmentKind::block_failed);
    CHECK(cox::merge_reports(profiled, failed).fragment.kind == cox::FragmentKind::block_failed);
    CHECK(cox::merge_reports(failed, {}).fragment.kind == cox::FragmentKind::block_failed);
  }

  TEST_CASE("evidence of an allocator travels in a fragment and comes out the same") {
    const cox::AllocatorEvidence evidence{std::uint64_t{90} << 30, std::uint64_t{60} << 30,
                                          std::uint64_t{25} << 30, 1 << 20};
    const cox::Fragment fragment = cox::make_fragment(evidence);
    CHECK(fragment.kind == cox::FragmentKind::allocator_evidence);
    CHECK(fragment.size == 32);
    const auto read = cox::read_allocator_evidence(fragment);
    REQUIRE(read.ok());
    CHECK(*read == evidence);
  }

  TEST_CASE("a fragment that is no sound evidence of an allocator is refused") {
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
    cox::AllocatorEvidence evidence{100, 60, 40, 7};
    REQUIRE(cox::read_allocator_evidence(cox::make_fragment(evidence)).ok());
    cox::Fragment fragment = cox::make_fragment(evidence);
    SUBCASE("another kind") {
      fragment = cox::make_fragment(cox::HostEvidence{});
    }
    SUBCASE("another size") {
      fragment.size = 24;
    }
    SUBCASE("an allocator that holds nothing") {
      fragment = cox::make_fragment(cox::AllocatorEvidence{});
    }
    SUBCASE("more in use than is held") {
      evidence.active_bytes = 101;
      fragment = cox::make_fragment(evidence);
    }
    SUBCASE("pieces that do not fit, whose sum would wrap") {
      evidence.inactive_split_bytes = kMost;
      fragment = cox::make_fragment(evidence);
    }
    CHECK(cox::read_allocator_evidence(fragment).status().code() == cox::StatusCode::data_loss);
  }

  TEST_CASE(
      "evidence of an allocator is news when more is held, or a sixteenth is used otherwise") {
    const cox::AllocatorEvidence sent{1600, 1000, 300, 50};
    cox::AllocatorEvidence now = sent;
    now.free_bytes = 0;
    CHECK_FALSE(cox::differs_noticeably(now, sent));
    now.active_bytes = 1100;
    CHECK_FALSE(cox::differs_noticeably(now, sent));
    now.active_bytes = 1101;
    CHECK(cox::differs_noticeably(now, sent));
    now = sent;
    now.inactive_split_bytes = 199;
    CHECK(cox::differs_noticeably(now, sent));
    now = sent;
    now.reserved_bytes = 1601;
    CHECK(cox::differs_noticeably(now, sent));
  }

  TEST_CASE("evidence of an allocator waits for profiles, failures and requests") {
    cox::RankSignal evidence, other;
    evidence.fragment = cox::make_fragment(cox::AllocatorEvidence{100, 60, 40, 7});
    CHECK(cox::merge_reports(evidence, {}).fragment.kind == cox::FragmentKind::allocator_evidence);
    for (const cox::Fragment& fragment :
         {cox::make_fragment(cox::BlockProfile{}), cox::make_fragment(cox::BlockFailure{}),
          cox::make_fragment(cox::PrecisionRequest{})}) {
      other.fragment = fragment;
      CHECK(cox::merge_reports(evidence, other).fragment.kind == fragment.kind);
      CHECK(cox::merge_reports(other, evidence).fragment.kind == fragment.kind);
    }
  }
}
