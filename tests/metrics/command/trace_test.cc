// `cox trace`, run as users run it. Checks the output against the Trace Event Format on published
// runs, on driven jobs, and on bad directories.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/host_sample.h"
#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/io/save_folder.h"
#include "metrics/records/host_lines.h"
#include "tests/metrics/command/outcome.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;

using io::Json;
using io::JsonKind;
using test::Outcome;
using test::TempFolder;

// Checks events against the format: the fields of each phase type, nested spans in each lane,
// ascending times in each lane, names for every process. Keeps events that tests query.
class FormatCheck {
 public:
  Status take(const Json& event) {
    const std::string phase = text(event, "ph");
    const Place place{whole(event, "pid"), whole(event, "tid")};
    if (text(event, "name").empty()) complain("no name");
    if (phase == "M") {
      named(event, place);
    } else {
      ++events;
      if (!processes.contains(place.process)) complain("a process without a name");
      const double start = number(event, "ts");
      if (!(start >= 0)) complain("a time that cannot be");
      if (phase == "X") span(event, place, start);
      if (phase == "i" && text(event, "s") != "t") complain("a moment without its scope");
      if (phase == "i") advance(moments_[place], start);
      if (phase == "i") names.insert(text(event, "name"));
      if (phase == "C") counter(event, place, start);
      if (phase != "X" && phase != "i" && phase != "C") complain("a phase type '" + phase + "'");
    }
    return complaint_.empty() ? ok_status() : data_loss(complaint_);
  }

  std::uint64_t events = 0;
  std::map<double, std::string> processes;
  std::set<std::string> names;  // spans and moments
  double end = 0;

 private:
  struct Place {
    double process = 0;
    double lane = 0;
    auto operator<=>(const Place&) const = default;
  };

  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = concat("event ", events, ": ", what);
  }
  std::string text(const Json& event, const char* name) {
    const Json* found = event.find(name);
    if (found == nullptr || found->kind != JsonKind::string) complain(concat("no text ", name));
    return found == nullptr ? "" : found->string;
  }
  double number(const Json& event, const char* name) {
    const Json* found = event.find(name);
    if (found == nullptr || found->kind != JsonKind::number) complain(concat("no number ", name));
    return found == nullptr ? -1 : found->number;
  }
  double whole(const Json& event, const char* name) {
    const double value = number(event, name);
    if (value != std::floor(value)) complain(concat(name, " is no whole number"));
    return value;
  }
  void named(const Json& event, const Place& place) {
    const Json* arguments = event.find("args");
    if (arguments == nullptr) return complain("a name without arguments");
    if (text(event, "name") == "process_name")
      processes[place.process] = text(*arguments, "name");
    else if (text(event, "name") == "thread_name")
      text(*arguments, "name");
    else
      complain("metadata that is not known");
  }
  // Microseconds as doubles resolve nanoseconds for some weeks only.
  static double tolerance(double time) { return 1e-4 + time * 0x1p-50; }
  void advance(double& last, double time) {
    if (time < last - tolerance(time)) complain("a time before the one before");
    last = std::max(last, time);
  }
  void span(const Json& event, const Place& place, double start) {
    const double duration = number(event, "dur");
    if (!(duration >= 0)) complain("a duration that cannot be");
    std::vector<double>& open = open_[place];
    advance(starts_[place], start);
    while (!open.empty() && open.back() <= start + tolerance(start)) open.pop_back();
    if (!open.empty() && start + duration > open.back() + tolerance(open.back()))
      complain("a span that overlaps another");
    open.push_back(start + duration);
    end = std::max(end, start + duration);
    names.insert(text(event, "name"));
  }
  void counter(const Json& event, const Place& place, double time) {
    const Json* series = event.find("args");
    if (series == nullptr || series->members.empty()) return complain("a counter without series");
    for (const io::JsonMember& member : series->members) {
      if (member.value.kind != JsonKind::number) complain("a counter that is no number");
    }
    advance(counters_[{place, text(event, "name")}], time);
  }

  std::string complaint_;
  std::map<Place, std::vector<double>> open_;  // ends of spans that may contain later ones
  std::map<Place, double> starts_;
  std::map<Place, double> moments_;
  std::map<std::pair<Place, std::string>, double> counters_;
};

struct Picture {
  FormatCheck format;
  Json rest;  // the document without its events
  std::uint64_t bytes = 0;
};

Picture read_picture(const fs::path& path) {
  Picture out;
  const auto text = io::read_file(path, std::uint64_t{1} << 30);
  REQUIRE(text.ok());
  out.bytes = text->size();
  const io::JsonStream stream{"traceEvents", [&](const Json& e) { return out.format.take(e); }};
  auto json = io::parse_json(*text, std::size_t{1} << 30, stream);
  REQUIRE_MESSAGE(json.ok(), json.status().message());
  out.rest = *std::move(json);
  REQUIRE(out.rest.find("traceEvents") != nullptr);
  REQUIRE(out.rest.find("otherData") != nullptr);
  return out;
}

Picture picture_of(const fs::path& run, const TempFolder& folder, const std::string& more = "") {
  const fs::path out = folder / "picture.json";
  const Outcome outcome =
      test::run_cox("trace '" + run.string() + "' --out '" + out.string() + "' " + more);
  REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.output);
  return read_picture(out);
}

// Writes a job's steps of 0.2 s at `ranks` ranks, beside DrivenJob's journal.
void write_steps(const fs::path& run, int ranks, int steps, double clock_off) {
  for (int r = 0; r < ranks; ++r) {
    std::string lines;
    for (int s = 0; s < steps; ++s) {
      const double end = 1.7e9 + 0.2 * (s + 1) + (r == 1 ? clock_off : 0);
      lines += fmt::format(
          "{{\"step\":{},\"timestamp\":{:.6f},\"phases\":{{\"forward\":0.05,\"backward\":0.1,"
          "\"comm\":0.03,\"optimizer\":0.01,\"other\":0.001}},\"scalars\":{{\"loss\":{:.3f}}},"
          "\"memory\":{{\"alloc\":{},\"peak_alloc\":2000}},\"round\":{},\"plan\":{},"
          "\"waiting\":{:.3f},\"recompute\":0.02,\"recomputed_blocks\":3{}{}}}\n",
          s, end, 3 - 0.001 * s, 1000 + s % 3, s, s / 40, r == 0 ? 0.02 : 0.001,
          s % 50 == 9 ? ",\"skipped\":true,\"overflow\":4" : "",
          s % 50 == 10 && r == 0 ? ",\"save\":0.005" : "");
    }
    const fs::path folder = run / concat("rank", r);
    fs::create_directories(folder);
    test::write_file(folder / "steps.jsonl", lines);
    test::write_file(folder / "run.json",
                     concat(R"({"name":"driven","rank":)", r, R"(,"world_size":)", ranks, "}"));
  }
}

TEST_SUITE("command.trace") {
  TEST_CASE("every published run becomes a picture that keeps the format") {
    TempFolder folder;
    for (const auto& run : fs::directory_iterator(COX_TEST_DATA "/training-runs/runs")) {
      CAPTURE(run.path().string());
      const Picture picture = picture_of(run.path(), folder);
      CHECK(picture.format.events > 50);
      CHECK(picture.format.names.contains("forward"));
    }
    const Picture four = picture_of(COX_TEST_DATA "/training-runs/runs/straggler", folder);
    CHECK(four.format.processes.size() == 5);
    CHECK(picture_of(COX_TEST_DATA "/training-runs/runs/diverged", folder)
              .format.names.contains("loss that is not finite"));
  }

  TEST_CASE("a job's phases, waits, plans and decisions with their reasons are in its picture") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_steps(run, 2, 2000, 0);
    test::write_journal(run / "journal.cox", 2, 2000, 5);
    const Picture picture = picture_of(run, folder);
    const FormatCheck& format = picture.format;
    CHECK(format.processes.at(1) == "coordinator");
    CHECK(format.processes.at(3) == "rank 1");
    for (const char* name :
         {"step 0", "save", "waiting", "own part", "recompute", "plan 3", "plan 1",
          "update skipped", "missing reports", "start 1: 2 ranks, 4 blocks"})
      CHECK_MESSAGE(format.names.contains(name), name);
    const auto is_decision = [](const std::string& name) { return name.ends_with("(changed)"); };
    CHECK(std::ranges::any_of(format.names, is_decision));
    CHECK(format.end == doctest::Approx(2000 * 0.2e6).epsilon(0.01));
    const auto text = test::read_file(folder / "picture.json");
    CHECK(text.find("\"why\":\"") != std::string::npos);
    CHECK(text.find("decisions: guard") != std::string::npos);
    for (const Json& clock : picture.rest.find("otherData")->find("clocks")->items)
      CHECK(clock.find("error_seconds")->number == 0);  // one node, by the journal
  }

  TEST_CASE("a clock that is off is put right, and the error is stated") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_steps(run, 2, 300, 12.5);
    const Picture picture = picture_of(run, folder);
    CHECK(picture.format.end == doctest::Approx(300 * 0.2e6).epsilon(0.01));
    const Json& clock = picture.rest.find("otherData")->find("clocks")->items.at(1);
    CHECK(clock.find("offset_seconds")->number == doctest::Approx(-12.5));
    CHECK(clock.find("error_seconds")->number == doctest::Approx(0.001).epsilon(0.1));
  }

  TEST_CASE("steps and ranks can be chosen, and a picture has room for so many events only") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_steps(run, 3, 1000, 0);
    test::write_journal(run / "journal.cox", 3, 1000, 6);
    const Picture chosen = picture_of(run, folder, "--steps 100:109 --ranks 0,2-5");
    CHECK(chosen.format.processes.size() == 3);
    CHECK(chosen.format.names.contains("step 109"));
    CHECK_FALSE(chosen.format.names.contains("step 110"));
    CHECK_FALSE(chosen.format.names.contains("step 99"));
    CHECK(chosen.format.end < 3e6);

    const Picture small = picture_of(run, folder, "--events 1000");
    CHECK(small.format.events <= 1000);
    CHECK(small.format.events > 700);
    CHECK(small.bytes < 200'000);
    CHECK(small.format.names.contains("step 999"));
    CHECK_FALSE(small.format.names.contains("step 0"));
    const std::string out = (folder / "o.json").string();
    const std::string to_file = "trace " + run.string() + " --events 1000 --out " + out;
    CHECK(test::run_cox(to_file).says("the picture holds at most 1000"));
    CHECK(test::run_cox("trace " + run.string() + " --events 1000 | cat > " + out).exit_code == 0);
    CHECK(read_picture(out).format.events == small.format.events);
  }

  TEST_CASE("the host timeline is drawn as counters and idle time, in its share of the room") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_steps(run, 2, 100, 0);
    for (int r = 0; r < 2; ++r) {
      std::string lines;
      for (int i = 0; i <= 200; ++i) {
        HostSample sample;
        sample.timestamp = 1.7e9 + 0.1 * i;
        sample.step = i / 2 + 1;
        sample.activity = i % 2 == 0 ? Activity::forward
                          : r == 0   ? Activity::waiting
                                     : Activity::data;
        sample.user_seconds = 0.08 * ((i + 1) / 2);  // no use while the rank waits or loads
        if (i == 0) sample.start = HostStart{1.7e9 - 3, 0.1, 0, 2, -1};
        if (r == 0) {
          sample.node = NodeCounters{};
          sample.node->disk_read_bytes = i == 100 ? 0 : 1000.0 * i;  // one counter goes back
        }
        lines += io::host_line(sample);
      }
      test::write_file(run / concat("rank", r) / "host.jsonl", lines);
    }
    const Picture picture = picture_of(run, folder);
    CHECK(picture.format.names.contains("waiting for rank 1"));
    CHECK(picture.format.names.contains("data"));
    const std::string text = test::read_file(folder / "picture.json");
    for (const char* words : {"process: cores in use", "node: disks (bytes a second)",
                              "idle time, by its cause", "no NVML, so GPUs are not drawn"})
      CHECK_MESSAGE(text.find(words) != std::string::npos, words);
    CHECK(text.find("node: network") == std::string::npos);  // not in the samples
    const Picture small = picture_of(run, folder, "--events 1000");
    CHECK(small.format.events <= 1000);
    CHECK(small.format.names.contains("step 99"));
    CHECK(picture_of(run, folder, "--steps 10:11").format.end < 2e6);
    test::write_file(run / "rank0" / "host.jsonl", "\xff\xfe\n{\"timestamp\":1,\"st");
    fs::remove(run / "rank1" / "host.jsonl");
    fs::create_directories(run / "rank1" / "host.jsonl");
    CHECK(picture_of(run, folder).format.names.contains("step 99"));
  }

  TEST_CASE("bad input ends with one sentence, and no file") {
    TempFolder folder;
    const fs::path run = folder / "run";
    const auto refused = [&](const std::string& arguments, const std::string& words) {
      const fs::path out = folder / "never.json";
      const Outcome outcome = test::run_cox("trace " + arguments + " --out " + out.string());
      CAPTURE(outcome.output);
      CHECK(outcome.exit_code == 2);
      CHECK(outcome.lines() == 1);
      CHECK(outcome.says(words));
      CHECK_FALSE(fs::exists(out));
    };
    refused(run.string(), "found nothing there");
    fs::create_directories(run);
    refused(run.string(), "expected a run directory with rank0/steps.jsonl");
    test::write_file(folder / "file", "x");
    refused((folder / "file").string(), "found a file");
    fs::create_directories(run / "rank0");
    refused(run.string(), "steps.jsonl");
    test::write_file(run / "rank0" / "steps.jsonl", "");
    refused(run.string(), "found none");
    test::write_file(run / "rank0" / "steps.jsonl", "\xff\xfe\x00\x01\n\xc3\x28\n");
    refused(run.string(), "found none");
    write_steps(run, 2, 5, 0);
    refused(run.string() + " --steps 9:3", "expected two step numbers");
    refused(run.string() + " --steps 100:", "found none");
    refused(run.string() + " --ranks 1-0", "expected ranks");
    refused(run.string() + " --ranks 7", "found none");
    test::write_file(run / "rank1" / "run.json", R"({"name":"another"})");
    refused(run.string(), "expected the ranks of one run");
    fs::remove_all(run / "rank1");
    fs::create_directory_symlink(run / "rank0", run / "rank1");
    refused(run.string(), "found a link");
    fs::remove(run / "rank1");
    fs::create_directories(run / "rank1");
    fs::create_symlink(run / "rank0" / "steps.jsonl", run / "rank1" / "steps.jsonl");
    refused(run.string(), "steps.jsonl");
    fs::remove(run / "rank1" / "steps.jsonl");
    REQUIRE(::mkfifo((run / "rank1" / "steps.jsonl").c_str(), 0600) == 0);
    refused(run.string(), "steps.jsonl");
  }

  TEST_CASE(
      "a journal that is damaged, foreign, a link or cut off leaves the rest of the picture") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_steps(run, 2, 100, 0);
    const fs::path path = run / "journal.cox";
    test::write_journal(path, 2, 100, 8);
    const std::string whole = test::read_file(path);
    std::string damaged = whole;
    damaged[damaged.size() / 2] ^= 0x40;
    for (const std::string& bytes :
         {damaged, whole.substr(0, whole.size() - 7), std::string("no journal"), std::string()}) {
      test::write_file(path, bytes);
      const Picture picture = picture_of(run, folder);
      CHECK(picture.format.names.contains("step 99"));
    }
    fs::remove(path);
    test::write_file(folder / "elsewhere", whole);
    fs::create_symlink(folder / "elsewhere", path);
    CHECK_FALSE(picture_of(run, folder).format.names.contains("start 1: 2 ranks, 4 blocks"));
  }

  TEST_CASE("a save of the run is drawn, one of another time is not") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_steps(run, 1, 50, 0);
    io::SaveManifest manifest;
    manifest.id = io::save_id(1, 2);
    manifest.incarnation = 1;
    manifest.world_size = 1;
    manifest.files = {{"model.safetensors", 5, 1}};
    for (const double written : {1.7e9 + 4, 1.8e9}) {
      manifest.step = written < 1.75e9 ? 20 : 90;
      manifest.written = UnixTime{written};
      const fs::path save = folder / "saves" / io::save_name(manifest.step);
      fs::create_directories(save);
      test::write_file(save / std::string(io::kManifestName), to_json(manifest));
    }
    const Picture picture = picture_of(run, folder, "--saves " + (folder / "saves").string());
    CHECK(picture.format.names.contains("save of step 20"));
    CHECK_FALSE(picture.format.names.contains("save of step 90"));
    const Outcome none =
        test::run_cox("trace " + run.string() + " --saves " + (folder / "none").string());
    CHECK(none.says("expected saves that were written during the run, found none"));
  }

  TEST_CASE("whatever lines say, the picture keeps the format and its size") {
    TempFolder folder;
    std::mt19937_64 engine(2121);
    const std::vector<std::string> odd = {
        "NaN",   "-Infinity", "1e308", "-1e308", "null",   "true",
        "\"x\"", "[]",        "{}",    "-0.0",   "1e-320", "9007199254740993",
        "1e10",  "-5",        "1e5",   "0",      "0.1",    "1.7e9"};
    const std::vector<std::string> names = {
        "forward", "comm",    "backward",  "other",   "lunch",      "\xc3\x28",
        "\\u0000", "a\\\"b",  "loss",      "alloc",   "peak_alloc", "round",
        "plan",    "waiting", "recompute", "skipped", "overflow",   "save"};
    const auto pick = [&](const std::vector<std::string>& from) {
      return from[engine() % from.size()];
    };
    for (int trial = 0; trial < 60; ++trial) {
      CAPTURE(trial);
      const fs::path run = folder / "run";
      fs::remove_all(run);
      const int ranks = 1 + static_cast<int>(engine() % 3);
      write_steps(run, ranks, 40, 0.001 * static_cast<double>(engine() % 2000));
      for (int r = 0; r < ranks; ++r) {
        const fs::path path = run / concat("rank", r) / "steps.jsonl";
        std::string text = test::read_file(path);
        for (int i = 0; i < 30; ++i) {
          std::string line = "{\"step\":" + std::to_string(engine() % 50) +
                             ",\"timestamp\":" + pick(odd) + ",\"" + pick(names) +
                             "\":" + pick(odd);
          for (const char* section : {"phases", "scalars", "memory"}) {
            line += std::string(",\"") + section + "\":{";
            for (std::size_t k = 0, n = engine() % 5; k < n; ++k)
              line += (k == 0 ? "\"" : ",\"") + pick(names) + "\":" + pick(odd);
            line += "}";
          }
          line += ",\"buckets\":[";
          for (std::size_t k = 0, n = engine() % 4; k < n; ++k)
            line += std::string(k == 0 ? "" : ",") + "[1," + pick(odd) + "," + pick(odd) + "," +
                    pick(odd) + "]";
          line += "]";
          std::size_t at = engine() % text.size();
          if (engine() % 3 != 0) at = text.find('\n', at) + 1;
          text.insert(at, line + "}\n");
        }
        for (std::uint64_t i = 0, n = engine() % 20; i < n; ++i)
          text[engine() % text.size()] = static_cast<char>(engine());
        text.resize(text.size() - engine() % 100);
        test::write_file(path, text);
      }
      const Picture picture = picture_of(run, folder, "--events 500");
      CHECK(picture.format.events <= 500);
      CHECK(picture.format.events > 0);
      CHECK(picture.bytes < 500 * 2500 + 20'000);
    }
  }
}

}  // namespace
}  // namespace cox
