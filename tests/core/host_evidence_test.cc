#include "coordinator/core/host_evidence.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr float kNotKnown = HostEvidence::kNotKnown;

HostTexts plain_texts() {
  HostTexts texts;
  texts.stat = "cpu  100 0 100 700 0 0 0 100 5 0\ncpu0 1 2 3\nctxt 9\n";
  texts.loadavg = "3.00 8.05 6.34 15/178 16696\n";
  texts.cpuinfo = "processor\t: 0\ncpu MHz\t\t: 2000.0\nprocessor\t: 1\ncpu MHz\t\t: 1000.0\n";
  texts.largest_clock = "3000000\n";
  texts.cpu_pressure = "some avg10=99.80 avg60=98.55 avg300=92.77 total=2141709055\n";
  texts.memory_pressure = "some avg10=1.50 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00\n";
  texts.io_pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
  texts.group_cpu = "usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 7\n";
  return texts;
}

HostEvidence evidence_of(const HostTexts& before, const HostTexts& now) {
  return evidence_between(read_host(before), read_host(now), "node-7", 2);
}

bool is_sound(float value) {
  return value == kNotKnown || (std::isfinite(value) && value >= 0);
}

void check_sound(const HostEvidence& e) {
  for (const float value : {e.steal_ratio, e.load_per_core, e.clock_ratio, e.throttled_ratio,
                            e.cpu_pressure, e.memory_pressure, e.io_pressure})
    CHECK(is_sound(value));
  CHECK(read_host_evidence(make_fragment(e)).ok());
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("what a machine's files say becomes evidence") {
    HostTexts now = plain_texts();
    now.stat = "cpu  150 0 100 700 0 0 0 150 5 0\n";
    now.group_cpu = "nr_periods 200\nnr_throttled 60\nthrottled_time 7\n";  // as in version 1
    const HostEvidence found = evidence_of(plain_texts(), now);
    CHECK(std::string(found.host.data()) == "node-7");
    CHECK(found.steal_ratio == doctest::Approx(0.5));
    CHECK(found.load_per_core == doctest::Approx(1.5));
    CHECK(found.clock_ratio == doctest::Approx(0.5));
    CHECK(found.throttled_ratio == doctest::Approx(0.5));
    CHECK(found.cpu_pressure == doctest::Approx(0.998));
    CHECK(found.memory_pressure == doctest::Approx(0.015));
    CHECK(found.io_pressure == 0);
    CHECK(found.clock_error_seconds == kNotKnown);
  }

  TEST_CASE("what a machine does not tell is not known, and the rest is") {
    const HostEvidence nothing = evidence_of({}, {});
    for (const float value :
         {nothing.steal_ratio, nothing.load_per_core, nothing.clock_ratio, nothing.throttled_ratio,
          nothing.cpu_pressure, nothing.memory_pressure, nothing.io_pressure})
      CHECK(value == kNotKnown);
    HostTexts some;
    some.loadavg = "1.0 ";
    CHECK(evidence_of({}, some).load_per_core == doctest::Approx(0.5));
    CHECK(evidence_of({}, plain_texts()).steal_ratio == kNotKnown);  // one reading is too few
  }

  TEST_CASE("odd texts of a file are not known") {
    struct Row {
      std::string HostTexts::*file;
      std::string text;
      float HostEvidence::*field;
    };
    const std::vector<Row> rows = {
        {&HostTexts::stat, "cpu", &HostEvidence::steal_ratio},
        {&HostTexts::stat, "cpu  1 2 3 4", &HostEvidence::steal_ratio},  // a kernel without steal
        {&HostTexts::stat, "cpu  1 2 3 x 5 6 7 8", &HostEvidence::steal_ratio},
        {&HostTexts::stat, "cpu  -1 2 3 4 5 6 7 8", &HostEvidence::steal_ratio},
        {&HostTexts::stat, "cpu  1 2 3 4 5 6 7 99999999999999999999", &HostEvidence::steal_ratio},
        {&HostTexts::stat, "cpu  18446744073709551615 1 3 4 5 6 7 8", &HostEvidence::steal_ratio},
        {&HostTexts::stat, "cpu0 150 0 100 700 0 0 0 150 5 0", &HostEvidence::steal_ratio},
        {&HostTexts::stat, "cpu  100 0 100 700 0 0 0 100", &HostEvidence::steal_ratio},  // stuck
        {&HostTexts::stat, "cpu  1 0 1 1 0 0 0 1", &HostEvidence::steal_ratio},  // went backwards
        {&HostTexts::loadavg, "nan 1 1", &HostEvidence::load_per_core},
        {&HostTexts::loadavg, "inf", &HostEvidence::load_per_core},
        {&HostTexts::loadavg, "-3", &HostEvidence::load_per_core},
        {&HostTexts::loadavg, "1e300", &HostEvidence::load_per_core},
        {&HostTexts::largest_clock, "0", &HostEvidence::clock_ratio},
        {&HostTexts::largest_clock, "", &HostEvidence::clock_ratio},
        {&HostTexts::largest_clock, "-5", &HostEvidence::clock_ratio},
        {&HostTexts::cpuinfo, "cpu MHz : nan", &HostEvidence::clock_ratio},
        {&HostTexts::cpuinfo, "cpu MHz", &HostEvidence::clock_ratio},
        {&HostTexts::io_pressure, "some avg10=", &HostEvidence::io_pressure},
        {&HostTexts::io_pressure, "some avg10=101.0", &HostEvidence::io_pressure},
        {&HostTexts::io_pressure, "some avg10=nan", &HostEvidence::io_pressure},
        {&HostTexts::io_pressure, "full avg10=3.0", &HostEvidence::io_pressure},
        {&HostTexts::group_cpu, "nr_periods 200\n", &HostEvidence::throttled_ratio},
        {&HostTexts::group_cpu, "nr_periods 1\nnr_throttled 1\n", &HostEvidence::throttled_ratio},
        {&HostTexts::group_cpu, "nr_periods 0\nnr_throttled 0\n", &HostEvidence::throttled_ratio},
    };
    for (const Row& row : rows) {
      CAPTURE(row.text);
      HostTexts now = plain_texts();
      now.*row.file = row.text;
      const HostEvidence found = evidence_of(plain_texts(), now);
      CHECK(found.*row.field == kNotKnown);
      check_sound(found);
    }
  }

  TEST_CASE("texts that are cut or altered anywhere give sound evidence") {
    std::mt19937 random(5);
    const HostTexts plain = plain_texts();
    constexpr std::string HostTexts::*kFiles[] = {
        &HostTexts::stat,        &HostTexts::loadavg,         &HostTexts::cpuinfo,
        &HostTexts::clock,       &HostTexts::largest_clock,   &HostTexts::cpu_pressure,
        &HostTexts::io_pressure, &HostTexts::memory_pressure, &HostTexts::group_cpu};
    for (int trial = 0; trial < 5000; ++trial) {
      HostTexts now = plain;
      for (const auto file : kFiles) {
        std::string& text = now.*file;
        if (random() % 3 == 0) text.resize(text.empty() ? 0 : random() % text.size());
        for (auto n = random() % 4; n > 0 && !text.empty(); --n)
          text[random() % text.size()] = static_cast<char>(random());
      }
      check_sound(evidence_of(plain, now));
      check_sound(evidence_of(now, plain));
    }
  }

  TEST_CASE(
      "a long host name keeps its beginning, and the fragment is refused when it is not sound") {
    const HostEvidence evidence = evidence_between({}, {}, std::string(80, 'h'), 4);
    CHECK(std::string(evidence.host.data()) == std::string(23, 'h'));
    Fragment fragment = make_fragment(evidence);
    REQUIRE(read_host_evidence(fragment).ok());
    CHECK(*read_host_evidence(fragment) == evidence);
    HostEvidence wrong = evidence;
    SUBCASE("another kind") {
      fragment = make_fragment(BlockProfile{});
    }
    SUBCASE("another size") {
      fragment.size = 8;
    }
    SUBCASE("a figure that is not finite") {
      wrong.steal_ratio = std::numeric_limits<float>::quiet_NaN();
      fragment = make_fragment(wrong);
    }
    SUBCASE("a negative figure") {
      wrong.io_pressure = -2;
      fragment = make_fragment(wrong);
    }
    CHECK(read_host_evidence(fragment).status().code() == StatusCode::data_loss);
  }

  TEST_CASE("evidence of a host gives way to everything else when reports are merged") {
    RankSignal hosted;
    hosted.fragment = make_fragment(HostEvidence{});
    for (const FragmentKind kind : {FragmentKind::block_profile, FragmentKind::block_failed,
                                    FragmentKind::precision_request}) {
      RankSignal other;
      other.fragment.kind = kind;
      CHECK(merge_reports(hosted, other).fragment.kind == kind);
      CHECK(merge_reports(other, hosted).fragment.kind == kind);
    }
    CHECK(merge_reports(hosted, {}).fragment.kind == FragmentKind::host_evidence);
  }

  TEST_CASE("a change is noticeable when a figure moves far, or becomes known") {
    HostEvidence a;
    a.steal_ratio = 0.1F;
    a.load_per_core = 1;
    HostEvidence b = a;
    CHECK_FALSE(differs_noticeably(a, b));
    b.steal_ratio = 0.15F;
    b.load_per_core = 1.3F;
    b.clock_error_seconds = 1;
    CHECK_FALSE(differs_noticeably(a, b));
    b.steal_ratio = 0.3F;
    CHECK(differs_noticeably(a, b));
    b = a;
    b.io_pressure = 0;
    CHECK(differs_noticeably(a, b));
  }

  TEST_CASE("the control group's CPU account is looked for where groups of both versions keep it") {
    using Files = std::vector<std::string>;
    CHECK(group_cpu_files("").empty());
    CHECK(group_cpu_files("0::/\n") == Files{"/sys/fs/cgroup/cpu.stat"});
    CHECK(group_cpu_files("0::/job/7\n") ==
          Files{"/sys/fs/cgroup/job/7/cpu.stat", "/sys/fs/cgroup/cpu.stat"});
    CHECK(group_cpu_files("3:memory:/m\n4:cpu,cpuacct:/a\n") ==
          Files{"/sys/fs/cgroup/cpu/a/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat",
                "/sys/fs/cgroup/cpu,cpuacct/a/cpu.stat", "/sys/fs/cgroup/cpu,cpuacct/cpu.stat"});
    CHECK(group_cpu_files("0::/../../etc\n") == Files{"/sys/fs/cgroup/cpu.stat"});
    CHECK(group_cpu_files("nonsense").empty());
  }
}
