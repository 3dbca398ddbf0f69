#include "coordinator/runtime/journal.h"

#include <sys/stat.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/hash.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/journal_reader.h"
#include "coordinator/runtime/replay.h"
#include "tests/runtime/driven_job.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using test::read_file;
using test::same_bits;
using test::TempFolder;
using test::write_file;
using test::write_journal;

struct ReadBack {
  std::size_t starts = 0;
  std::vector<wire::JournalRound> rounds;
  std::uint64_t torn_bytes = 0;
  Status status;
};

ReadBack read_back(const std::filesystem::path& path) {
  ReadBack all;
  auto reader = JournalReader::open(path);
  all.status = reader.status();
  while (all.status.ok()) {
    auto entry = reader->next();
    all.status = entry.status();
    if (!entry.ok()) break;
    if (auto* end = std::get_if<JournalEnd>(&*entry)) {
      all.torn_bytes = end->torn_bytes;
      break;
    }
    if (auto* round = std::get_if<wire::JournalRound>(&*entry)) all.rounds.push_back(*round);
    if (std::holds_alternative<wire::JournalStart>(*entry)) ++all.starts;
  }
  return all;
}

TEST_SUITE("runtime.journal") {
  TEST_CASE("what was appended is read back bit for bit") {
    TempFolder folder;
    test::RandomValues random(1);
    const JobFacts job = test::capable_job(4, 6);
    const ControlState state = random.state(job);
    auto writer = JournalWriter::open(folder / "j", {job, {}, state, default_policies()});
    REQUIRE_MESSAGE(writer.ok(), writer.status().text());
    std::vector<wire::JournalRound> written;
    for (std::uint64_t round = 1; round <= 100; ++round) {
      wire::JournalRound one{random.signals(job, RoundId(round)), {}};
      if (random.chance(10)) one.decision.plan = random.plan(job, round);
      if (random.chance(30)) one.decision.reasons.push_back(random.reason());
      REQUIRE((*writer)->append(one.signals, one.decision).ok());
      written.push_back(one);
    }
    REQUIRE((*writer)->close().ok());
    CHECK(std::filesystem::file_size(folder / "j") == (*writer)->bytes());

    const ReadBack all = read_back(folder / "j");
    REQUIRE_MESSAGE(all.status.ok(), all.status.text());
    CHECK(all.starts == 1);
    CHECK(all.torn_bytes == 0);
    REQUIRE(all.rounds.size() == written.size());
    for (std::size_t i = 0; i < written.size(); ++i) {
      CHECK(same_bits(all.rounds[i].signals, written[i].signals));
      CHECK(all.rounds[i].decision.plan == written[i].decision.plan);
      CHECK(all.rounds[i].decision.reasons == written[i].decision.reasons);
    }
  }

  TEST_CASE("a token of the configuration does not get into the file") {
    TempFolder folder;
    test::RandomValues random(1);
    const JobFacts job = test::capable_job(4, 6);
    Config config;
    config.http.token = "open-sesame";
    auto writer =
        JournalWriter::open(folder / "j", {job, config, random.state(job), default_policies()});
    REQUIRE_MESSAGE(writer.ok(), writer.status().text());
    REQUIRE((*writer)->close().ok());
    const std::string bytes = read_file(folder / "j");
    CHECK(bytes.find("open-sesame") == std::string::npos);
    CHECK(bytes.find("http.token = (set)\n") != std::string::npos);
  }

  TEST_CASE("reports that no coordinator can have had are damage, with its offset") {
    const JobFacts job = test::capable_job(3, 2);
    const auto first_error = [&](const std::vector<std::int32_t>& ranks, std::size_t evidence) {
      TempFolder folder;
      auto writer = JournalWriter::open(folder / "j", {job, {}, initial_state(job), {}});
      REQUIRE(writer.ok());
      StepSignals signals;
      signals.round = RoundId(1);
      signals.evidence.resize(evidence);
      for (const std::int32_t rank : ranks) {
        RankSignal report;
        report.rank = RankId(rank);
        signals.reports.push_back(report);
      }
      REQUIRE((*writer)->append(signals, {}).ok());
      REQUIRE((*writer)->close().ok());
      return read_back(folder / "j").status;
    };
    CHECK(first_error({0, 2}, 2).ok());
    CHECK(first_error({}, 0).ok());
    for (const std::vector<std::int32_t>& ranks :
         std::vector<std::vector<std::int32_t>>{{-1}, {3}, {1, 0}, {1, 1}}) {
      const Status status = first_error(ranks, 0);
      CHECK(status.code() == StatusCode::data_loss);
      CHECK(status.message().find("record at byte") != std::string::npos);
    }
    CHECK(first_error({0}, 1).code() == StatusCode::data_loss);
  }

  TEST_CASE("faults that no coordinator can have seen are damage, with its offset") {
    const JobFacts job = test::capable_job(3, 2);
    const auto first_error = [&](const std::vector<FaultyReport>& faults) {
      TempFolder folder;
      auto writer = JournalWriter::open(folder / "j", {job, {}, initial_state(job), {}});
      REQUIRE(writer.ok());
      StepSignals signals;
      signals.round = RoundId(1);
      signals.faults = faults;
      REQUIRE((*writer)->append(signals, {}).ok());
      REQUIRE((*writer)->close().ok());
      return read_back(folder / "j").status;
    };
    constexpr auto kDamaged = ReportFault::damaged;
    const auto missing = [](std::int32_t rank) {
      return FaultyReport{RankId(rank), ReportFault::missing, {}};
    };
    CHECK(first_error({missing(0), missing(2)}).ok());
    CHECK(
        first_error({{RankId(-1), kDamaged, {}}, {RankId(70000), ReportFault::foreign, {}}}).ok());
    for (const std::vector<FaultyReport>& faults :
         std::vector<std::vector<FaultyReport>>{{missing(3)},
                                                {missing(-1)},
                                                {missing(1), missing(1)},
                                                {missing(2), missing(0)},
                                                {{RankId(-2), kDamaged, {}}},
                                                {{RankId(0), static_cast<ReportFault>(6), {}}}}) {
      const Status status = first_error(faults);
      CHECK(status.code() == StatusCode::data_loss);
      CHECK(status.message().find("record at byte") != std::string::npos);
    }
  }

  TEST_CASE("a start whose plan does not fit its job is damage, with its offset") {
    const JobFacts job = test::capable_job(3, 2);
    TempFolder folder;
    ControlState state = initial_state(job);
    SUBCASE("other ranks") {
      state.plan.rank_profile.assign(2, ProfileId(0));
    }
    SUBCASE("a profile that is not there") {
      state.plan.rank_profile.assign(3, ProfileId(5));
    }
    SUBCASE("blocks without actions") {
      state.plan.profiles[0].pop_back();
    }
    std::optional<Decision> first;
    SUBCASE("a first plan with a profile that is not there") {
      first.emplace().plan = initial_plan(job);
      first->plan->rank_profile.assign(3, ProfileId(0xFFFF));
    }
    SUBCASE("a first plan of other blocks") {
      first.emplace().plan = initial_plan(test::capable_job(3, 3));
    }
    auto writer = JournalWriter::open(folder / "j", {job, {}, state, {}, first});
    REQUIRE(writer.ok());
    REQUIRE((*writer)->close().ok());
    const Status status = read_back(folder / "j").status;
    CHECK(status.code() == StatusCode::data_loss);
    CHECK(status.message().find("record at byte 16: ") != std::string::npos);
    auto reader = JournalReader::open(folder / "j");
    REQUIRE(reader.ok());
    CHECK(replay(*reader, default_policies(), {}).status().code() == StatusCode::data_loss);
  }

  TEST_CASE("a round whose plan does not fit its job is damage, with its offset") {
    const JobFacts job = test::capable_job(3, 2);
    for (const std::uint16_t profile : {0, 7}) {
      TempFolder folder;
      auto writer = JournalWriter::open(folder / "j", {job, {}, initial_state(job), {}});
      REQUIRE(writer.ok());
      StepSignals signals;
      signals.round = RoundId(1);
      Decision decision;
      decision.plan = initial_plan(job);
      decision.plan->rank_profile.assign(3, ProfileId(profile));
      REQUIRE((*writer)->append(signals, decision).ok());
      REQUIRE((*writer)->close().ok());
      const Status status = read_back(folder / "j").status;
      CHECK(status.ok() == (profile == 0));
      if (profile == 0) continue;
      CHECK(status.code() == StatusCode::data_loss);
      CHECK(status.message().find("record at byte") != std::string::npos);
    }
  }

  TEST_CASE("a journal of the last version is refused by version, and says what to do") {
    TempFolder folder;
    write_journal(folder / "j", 2, 3, 1);
    std::string old = read_file(folder / "j");
    old[8] = 5;
    const std::uint32_t check = crc32(std::as_bytes(std::span(old).first(12)));
    for (int i = 0; i < 4; ++i) old[12 + i] = static_cast<char>(check >> (8 * i));
    write_file(folder / "j", old);
    const Status status = JournalReader::open(folder / "j").status();
    CHECK(status.code() == StatusCode::failed_precondition);
    CHECK(
        status.message().ends_with("expected version 6, found 5; replay the journal with the "
                                   "Coxswain that wrote it, and give this job another file"));
  }

  TEST_CASE("a journal of an older version is moved aside with all its bytes, never appended to") {
    TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), {}};
    write_journal(folder / "j", 2, 3, 1);
    std::string old = read_file(folder / "j");
    old[8] = 5;
    const std::uint32_t check = crc32(std::as_bytes(std::span(old).first(12)));
    for (int i = 0; i < 4; ++i) old[12 + i] = static_cast<char>(check >> (8 * i));
    for (const char* aside : {"j.version5", "j.version5.2"}) {
      write_file(folder / "j", old);
      auto writer = JournalWriter::open(folder / "j", head);
      REQUIRE_MESSAGE(writer.ok(), writer.status().text());
      CHECK((*writer)->moved_aside() == folder / aside);
      REQUIRE((*writer)->close().ok());
      CHECK(read_file(folder / aside) == old);
      CHECK(read_back(folder / "j").starts == 1);
      writer = JournalWriter::open(folder / "j", head);
      REQUIRE(writer.ok());
      CHECK((*writer)->moved_aside().empty());
      REQUIRE((*writer)->close().ok());
      CHECK(read_back(folder / "j").starts == 2);
    }
    std::string newer = old;
    newer[8] = 7;
    const std::uint32_t newer_check = crc32(std::as_bytes(std::span(newer).first(12)));
    for (int i = 0; i < 4; ++i) newer[12 + i] = static_cast<char>(newer_check >> (8 * i));
    write_file(folder / "j", newer);
    CHECK(JournalWriter::open(folder / "j", head).status().code() ==
          StatusCode::failed_precondition);
    CHECK(read_file(folder / "j") == newer);
  }

  TEST_CASE("a record torn at any byte is ignored and reported, all before it is there") {
    TempFolder folder;
    write_journal(folder / "whole", 2, 5, 3);
    write_journal(folder / "shorter", 2, 4, 3);
    const std::string whole = read_file(folder / "whole");
    const std::size_t last = std::filesystem::file_size(folder / "shorter");
    REQUIRE(last < whole.size());
    for (std::size_t size = last + 1; size < whole.size(); ++size) {
      write_file(folder / "torn", whole.substr(0, size));
      const ReadBack all = read_back(folder / "torn");
      REQUIRE_MESSAGE(all.status.ok(), all.status.text());
      CHECK(all.rounds.size() == 4);
      CHECK(all.torn_bytes == size - last);
    }
    write_file(folder / "torn", whole + std::string(5000, '\0'));
    CHECK(read_back(folder / "torn").rounds.size() == 5);
    CHECK(read_back(folder / "torn").torn_bytes == 5000);
  }

  TEST_CASE("a flipped bit anywhere is an error or costs the last record only, never a crash") {
    TempFolder folder;
    write_journal(folder / "whole", 2, 6, 4);
    const std::string whole = read_file(folder / "whole");
    const auto step_at = [&](std::size_t at) {  // only some bytes of the long configuration text
      return at < 64 || at + 900 > whole.size() ? std::size_t{1} : std::size_t{11};
    };
    for (std::size_t at = 0; at < whole.size(); at += step_at(at)) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      write_file(folder / "bad", bytes);
      const ReadBack all = read_back(folder / "bad");
      if (all.status.ok()) {
        CHECK(all.rounds.size() == 5);
        CHECK(all.torn_bytes > 0);
      } else {
        CHECK(all.status.message().find((folder / "bad").string()) != std::string::npos);
      }
    }
  }

  TEST_CASE("damage in the middle names its offset") {
    TempFolder folder;
    write_journal(folder / "j", 2, 20, 5);
    std::string bytes = read_file(folder / "j");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file(folder / "j", bytes);
    const ReadBack all = read_back(folder / "j");
    CHECK(all.status.code() == StatusCode::data_loss);
    CHECK(all.status.message().find("at byte ") != std::string::npos);
    CHECK(all.rounds.size() < 20);
  }

  TEST_CASE("a restart continues the file with a segment of its own, behind a torn record too") {
    TempFolder folder;
    write_journal(folder / "j", 2, 8, 6);
    const std::string first = read_file(folder / "j");
    write_file(folder / "j", first.substr(0, first.size() - 3));
    write_journal(folder / "j", 2, 8, 7);
    const ReadBack all = read_back(folder / "j");
    REQUIRE_MESSAGE(all.status.ok(), all.status.text());
    CHECK(all.starts == 2);
    CHECK(all.rounds.size() == 15);
    CHECK(all.torn_bytes == 0);
  }

  TEST_CASE("a file that is no journal or a damaged one is left as it is") {
    TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), {}};
    write_file(folder / "text", "precious notes of somebody else");
    CHECK(JournalWriter::open(folder / "text", head).status().code() == StatusCode::data_loss);
    CHECK(read_file(folder / "text") == "precious notes of somebody else");

    write_journal(folder / "j", 2, 20, 5);
    std::string bytes = read_file(folder / "j");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write_file(folder / "j", bytes);
    CHECK(JournalWriter::open(folder / "j", head).status().code() == StatusCode::data_loss);
    CHECK(read_file(folder / "j") == bytes);
  }

  TEST_CASE("two jobs cannot write to one journal") {
    TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), {}};
    const auto first = JournalWriter::open(folder / "j", head);
    REQUIRE(first.ok());
    CHECK(JournalWriter::open(folder / "j", head).status().code() ==
          StatusCode::failed_precondition);
  }

  TEST_CASE("a link is refused, and the journal that it leads to stays as it was") {
    TempFolder folder;
    write_journal(folder / "other", 2, 8, 6);
    const std::string other = read_file(folder / "other");
    std::filesystem::create_symlink(folder / "other", folder / "j");
    const JobFacts job = test::driven_job(2);
    const auto refused = JournalWriter::open(folder / "j", {job, {}, initial_state(job), {}});
    CHECK(refused.status().code() == StatusCode::failed_precondition);
    CHECK(refused.status().message().find("found a link") != std::string::npos);
    CHECK(read_file(folder / "other") == other);
  }

  TEST_CASE("a restart leaves a backup that shares the journal's bytes as it was") {
    TempFolder folder;
    write_journal(folder / "j", 2, 8, 6);
    const std::string first = read_file(folder / "j");
    write_file(folder / "j", first.substr(0, first.size() - 3));
    std::filesystem::create_hard_link(folder / "j", folder / "backup");
    write_journal(folder / "j", 2, 8, 7);
    CHECK(read_file(folder / "backup") == first.substr(0, first.size() - 3));
    const ReadBack all = read_back(folder / "j");
    REQUIRE_MESSAGE(all.status.ok(), all.status.text());
    CHECK(all.starts == 2);
    CHECK(all.rounds.size() == 15);
  }

  TEST_CASE("a backup made while the job writes keeps the bytes that it had, and the lock holds") {
    TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), {}};
    auto writer = JournalWriter::open(folder / "j", head);
    REQUIRE(writer.ok());
    const std::string before = read_file(folder / "j");
    std::filesystem::create_hard_link(folder / "j", folder / "backup");
    REQUIRE((*writer)->begin(head).ok());
    CHECK(read_file(folder / "backup") == before);
    CHECK(read_back(folder / "j").starts == 2);
    CHECK(JournalWriter::open(folder / "j", head).status().code() ==
          StatusCode::failed_precondition);
  }

  TEST_CASE("a journal that is removed while the job writes to it is said to be, once") {
    TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), {}};
    auto writer = JournalWriter::open(folder / "j", head);
    REQUIRE(writer.ok());
    std::filesystem::remove(folder / "j");
    const Status told = (*writer)->begin(head);
    CHECK(told.message().find("the file was removed") != std::string::npos);
    CHECK((*writer)->close().ok());
    CHECK_FALSE(std::filesystem::exists(folder / "j"));
  }

  TEST_CASE("bad paths are one clear error") {
    TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), {}};
    CHECK_FALSE(JournalWriter::open(folder / "no/such/folder", head).ok());
    CHECK_FALSE(JournalWriter::open("/dev/full", head).ok());
    CHECK(JournalReader::open(folder / "none").status().code() == StatusCode::not_found);
  }

  TEST_CASE("a pipe, a device or a folder is no journal: refused without waiting for it") {
    TempFolder folder;
    const JobFacts job = test::driven_job(2);
    const JournalHead head{job, {}, initial_state(job), {}};
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    for (const std::filesystem::path& path :
         {folder / "pipe", folder / "", std::filesystem::path("/dev/zero")}) {
      const Status read = JournalReader::open(path).status();
      CHECK(read.code() == StatusCode::failed_precondition);
      CHECK(read.message().find("expected a regular file, found a ") != std::string::npos);
      CHECK(JournalWriter::open(path, head).status().code() == StatusCode::failed_precondition);
    }
    write_journal(folder / "j", 2, 3, 1);
    std::filesystem::create_symlink(folder / "j", folder / "link");
    CHECK(JournalReader::open(folder / "link").ok());
    CHECK(JournalReader::open(folder / "link", io::Links::refused).status().code() ==
          StatusCode::failed_precondition);
  }

  TEST_CASE("more zeros behind the last record than a record has are damage, and are not read") {
    TempFolder folder;
    write_journal(folder / "j", 2, 3, 1);
    const std::uint64_t size = std::filesystem::file_size(folder / "j");
    std::filesystem::resize_file(folder / "j", size + kRecordHeaderBytes + kMaxRecordBytes + 1);
    CHECK(read_back(folder / "j").status.code() == StatusCode::data_loss);
    std::filesystem::resize_file(folder / "j", std::uintmax_t{1} << 40);
    const ReadBack all = read_back(folder / "j");
    CHECK(all.status.code() == StatusCode::data_loss);
    CHECK(all.rounds.size() == 3);
  }
}

}  // namespace
}  // namespace cox::runtime
