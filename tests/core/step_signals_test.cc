#include "coordinator/core/step_signals.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::RankId;
using cox::ReportFault;
using cox::RoundId;

constexpr RoundId kRound{10};
constexpr std::uint32_t kIncarnation = 2;

cox::RankSignal report(std::int32_t rank, std::uint64_t round = 10,
                       std::uint32_t incarnation = kIncarnation) {
  cox::RankSignal s;
  s.rank = RankId(rank);
  s.round = RoundId(round);
  s.incarnation = incarnation;
  s.rounds = 1;
  cox::seal(s);
  return s;
}

cox::StepSignals collected(const std::vector<cox::RankSignal>& received, std::int32_t world) {
  return cox::collect(kRound, kIncarnation, world, received, {}, {5});
}

// Returns the promised result of collect(), by sorting. REQUIRES: no report is damaged.
cox::StepSignals by_sorting(const std::vector<cox::RankSignal>& received, std::int32_t world) {
  cox::StepSignals s;
  std::vector<cox::RankSignal> fresh;
  for (const cox::RankSignal& report : received) {
    if (report.incarnation != kIncarnation || report.rank.value() >= world) {
      s.faults.push_back({report.rank, ReportFault::foreign, report.round});
    } else if (report.round < kRound) {
      s.faults.push_back({report.rank, ReportFault::stale, report.round});
    } else {
      fresh.push_back(report);
    }
  }
  std::sort(fresh.begin(), fresh.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.round) != std::tie(b.rank, b.round)
               ? std::tie(a.rank, a.round) < std::tie(b.rank, b.round)
               : std::memcmp(&a, &b, sizeof a) < 0;
  });
  for (std::int32_t r = 0; r < world; ++r) {
    const auto is_of_rank = [r](const auto& report) { return report.rank == RankId(r); };
    auto at = std::find_if(fresh.begin(), fresh.end(), is_of_rank);
    if (at == fresh.end()) {
      s.faults.push_back({RankId(r), ReportFault::missing, kRound});
      continue;
    }
    s.reports.push_back(*at);
    for (++at; at != fresh.end() && is_of_rank(*at); ++at) {
      s.faults.push_back({at->rank, ReportFault::duplicate, at->round});
    }
  }
  std::sort(s.faults.begin(), s.faults.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.fault, a.round) < std::tie(b.rank, b.fault, b.round);
  });
  return s;
}

bool same(const cox::StepSignals& a, const cox::StepSignals& b) {
  const std::size_t bytes = a.reports.size() * sizeof(cox::RankSignal);
  return a.faults == b.faults && a.reports.size() == b.reports.size() &&
         (bytes == 0 || std::memcmp(a.reports.data(), b.reports.data(), bytes) == 0);
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("each kind of faulty report is named and kept away from decisions") {
    cox::RankSignal damaged = report(0);
    damaged.loss = 1;
    const cox::StepSignals s = collected(
        {report(2), report(1, 9), report(2), report(3, 10, 1), report(4), damaged, report(0, 11)},
        4);
    REQUIRE(s.reports.size() == 2);
    CHECK(s.reports[0].rank == RankId(0));
    CHECK(s.reports[1].rank == RankId(2));
    const std::vector<cox::FaultyReport> expected = {
        {RankId(-1), ReportFault::damaged, RoundId(0)}, {RankId(1), ReportFault::missing, kRound},
        {RankId(1), ReportFault::stale, RoundId(9)},    {RankId(2), ReportFault::duplicate, kRound},
        {RankId(3), ReportFault::missing, kRound},      {RankId(3), ReportFault::foreign, kRound},
        {RankId(4), ReportFault::foreign, kRound}};
    CHECK(s.faults == expected);
  }

  TEST_CASE("without any report every rank is missing") {
    const cox::StepSignals s = collected({}, 3);
    CHECK(s.reports.empty());
    REQUIRE(s.faults.size() == 3);
    for (const cox::FaultyReport& f : s.faults) CHECK(f.fault == ReportFault::missing);
  }

  TEST_CASE("the order in which reports arrive changes nothing") {
    cox::testing::Random random(3);
    for (int run = 0; run < 200; ++run) {
      std::vector<cox::RankSignal> received;
      for (int i = 0; i < 20; ++i) {
        const auto rank = static_cast<std::int32_t>(random.below(8));
        received.push_back(report(rank, 9 + random.below(3), 2 - (random.below(8) == 0)));
        if (random.chance(0.1)) received.back().loss = 7;  // changed after sealing
      }
      const cox::StepSignals before = collected(received, 7);
      for (std::size_t i = received.size(); i > 1; --i) {
        std::swap(received[i - 1], received[random.below(i)]);
      }
      REQUIRE(same(before, collected(received, 7)));
    }
  }

  TEST_CASE("what counts of a round, and what is faulty, is what sorting all reports would say") {
    cox::testing::Random random(4);
    for (int run = 0; run < 500; ++run) {
      const auto world = static_cast<std::int32_t>(1 + random.below(6));
      std::vector<cox::RankSignal> received;
      for (std::uint64_t n = random.below(16); n > 0; --n) {
        received.push_back(report(static_cast<std::int32_t>(random.below(7)), 9 + random.below(3),
                                  2 - (random.below(8) == 0)));
        received.back().samples = static_cast<std::uint32_t>(random.below(3));
        cox::seal(received.back());
      }
      REQUIRE(same(by_sorting(received, world), collected(received, world)));
    }
  }

  TEST_CASE("of two different reports for one round the same one counts in either order") {
    cox::RankSignal a = report(0), b = report(0);
    a.loss = 1;
    b.loss = 2;
    cox::seal(a);
    cox::seal(b);
    CHECK(same(collected({a, b}, 1), collected({b, a}, 1)));
  }

  TEST_CASE("every fault has a name of its own") {
    std::vector<std::string_view> names;
    for (int f = 0; f <= static_cast<int>(ReportFault::foreign); ++f) {
      names.push_back(cox::to_string(static_cast<ReportFault>(f)));
    }
    std::sort(names.begin(), names.end());
    CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  }
}
