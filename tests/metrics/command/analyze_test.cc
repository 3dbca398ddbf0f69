// `cox analyze` and `cox diff`, run as users run them, on the published cases.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "coordinator/core/host_sample.h"
#include "coordinator/core/operator_table.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "metrics/records/host_lines.h"
#include "metrics/records/operator_table_file.h"
#include "tests/metrics/command/outcome.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using io::Json;
using io::JsonKind;
using test::Outcome;

const std::string kFolder = std::string(COX_TEST_DATA) + "/training-runs/";

std::string run_of(const std::string& name) {
  return kFolder + "runs/" + name;
}

Json parsed(const std::string& text) {
  auto json = io::parse_json(text);
  REQUIRE_MESSAGE(json.ok(), json.status().message() << "\n" << text);
  return *std::move(json);
}

Json expected() {
  const auto text = io::read_file(kFolder + "expected.json", 16 << 20);
  REQUIRE(text.ok());
  return parsed(*text);
}

std::string text_of(const Json& schedule) {
  io::JsonWriter out;
  out.begin_object().key("microbatches");
  const Json& count = *schedule.find("microbatches");
  count.kind == JsonKind::number ? out.value(count.number) : out.null();
  out.key("intervals").begin_array();
  for (const Json& interval : schedule.find("intervals")->items) {
    out.begin_array();
    for (const Json& number : interval.items) out.value(number.number);
    out.end_array();
  }
  out.end_array().end_object();
  return out.take();
}

// Sentences differ in wording from those of the published tool.
bool is_sentence(const std::string& name) {
  return name == "title" || name == "detail" || name == "notes";
}

// Compares texts exactly and numbers to 1e-9. Ignores additional members.
void check_equal(const Json& wanted, const Json& found, const std::string& where) {
  CAPTURE(where);
  REQUIRE(wanted.kind == found.kind);
  if (wanted.kind == JsonKind::number)
    CHECK(std::fabs(wanted.number - found.number) <=
          1e-9 * std::max(std::fabs(wanted.number), std::fabs(found.number)));
  CHECK(wanted.string == found.string);
  CHECK(wanted.boolean == found.boolean);
  REQUIRE(wanted.items.size() == found.items.size());
  for (std::size_t i = 0; i < wanted.items.size(); ++i)
    check_equal(wanted.items[i], found.items[i], where + "[]");
  for (const io::JsonMember& member : wanted.members) {
    const Json* value = found.find(member.name);
    REQUIRE_MESSAGE(value != nullptr, member.name);
    if (is_sentence(member.name)) continue;
    check_equal(member.value, *value, where + "." + member.name);
  }
}

// Sets a variable of the environment during its lifetime, also for programs started meanwhile.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// Returns characters, not bytes.
std::size_t width_of(const std::string& line) {
  return static_cast<std::size_t>(std::ranges::count_if(
      line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Checks that only single words make a line longer.
void check_width(const std::string& arguments, std::size_t columns) {
  CAPTURE(arguments);
  CAPTURE(columns);
  std::istringstream lines(test::run_cox(arguments).output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find_first_not_of(' ');
    const bool has_words = first != std::string::npos && line.find(' ', first) != std::string::npos;
    if (has_words) CHECK_MESSAGE(width_of(line) <= columns, line);
  }
}

void rename_device(const std::filesystem::path& file, const std::string& name) {
  std::string text = *io::read_file(file, 1 << 20);
  const std::size_t begin = text.find('"', text.find("\"gpu\":") + 6) + 1;
  text.replace(begin, text.find('"', begin) - begin, name);
  std::ofstream(file) << text;
}

TEST_SUITE("command.analyze") {
  TEST_CASE("every published case has the published figures and findings") {
    const Json all = expected();
    for (const io::JsonMember& item : all.find("analyze")->members) {
      std::string arguments = "analyze " + run_of(item.name) + " --rules pytscope --json";
      for (const Json& word : item.value.find("arguments")->items) arguments += " " + word.string;
      const Outcome outcome = test::run_cox(arguments);
      CHECK(outcome.exit_code == 0);
      Json wanted = item.value;
      std::erase_if(wanted.members, [](const io::JsonMember& m) {
        return m.name == "arguments" || m.name == "cli_exit";
      });
      check_equal(wanted, parsed(outcome.output), item.name);
    }
  }

  TEST_CASE("every published schedule has the published figures and findings") {
    const Json all = expected();
    for (const Json& item : all.find("pipeline")->items) {
      const std::string name = item.find("name")->string;
      const auto file = std::filesystem::temp_directory_path() / ("cox-" + name + ".json");
      std::ofstream(file) << text_of(item);
      const std::string arguments =
          "analyze " + run_of("healthy") + " --json --pipeline " + file.string();
      const Json found = parsed(test::run_cox(arguments + " --rules pytscope").output);
      check_equal(*item.find("summary"), *found.find("pipeline"), name);
      check_equal(*item.find("findings"), *found.find("findings"), name);
      const Json own = parsed(test::run_cox(arguments).output);
      CHECK(own.find("findings")->items.size() == item.find("findings")->items.size());
      std::filesystem::remove(file);
    }
    CHECK(
        parsed(test::run_cox("analyze " + run_of("healthy") + " --json").output).find("pipeline") ==
        nullptr);
  }

  TEST_CASE(
      "the command line says how many micro-batches a schedule has, and a directory has one") {
    const auto run = std::filesystem::temp_directory_path() / "cox-analyze-pipeline";
    std::filesystem::remove_all(run);
    std::filesystem::copy(run_of("healthy"), run, std::filesystem::copy_options::recursive);
    const std::string analyze = "analyze " + run.string();
    CHECK(test::run_cox(analyze + " --microbatches 4").exit_code == 2);
    std::ofstream(run / "pipeline.json")
        << "{\"intervals\":[[0,0,1],[0,3,4],[1,1,2],[1,4,5]],\"microbatches\":null}";
    const Outcome unknown = test::run_cox(analyze);
    CHECK(unknown.says("Pipeline of 2 stages"));
    CHECK(unknown.says("DIST.PIPELINE_BUBBLE"));
    CHECK(unknown.says("(--microbatches)"));
    const Outcome known = test::run_cox(analyze + " --microbatches 2 --fail-on high");
    CHECK(known.says("with 2 micro-batches 33.3 %"));
    CHECK(known.exit_code == 1);
    CHECK(test::run_cox(analyze + " --microbatches 0").exit_code == 2);
    std::ofstream(run / "pipeline.json") << "{\"intervals\":[[0,0,1";
    CHECK(test::run_cox(analyze).exit_code == 2);
    std::filesystem::remove_all(run);
  }

  TEST_CASE(
      "idle time is told by its cause where there is a host timeline, by our own rules alone") {
    const auto run = std::filesystem::temp_directory_path() / "cox-analyze-idle";
    std::filesystem::remove_all(run);
    std::filesystem::copy(run_of("straggler"), run, std::filesystem::copy_options::recursive);
    for (int rank = 0; rank < 4; ++rank) {
      std::ofstream file(run / ("rank" + std::to_string(rank)) / "host.jsonl");
      for (int i = 0; i <= 100; ++i) {
        HostSample sample;
        sample.timestamp = 1.7e9 + 0.1 * i;
        sample.step = 1;
        sample.activity = rank == 2 ? Activity::data : Activity::waiting;
        sample.activity_seconds = 0.1;
        if (i == 0) sample.activity = Activity::forward;
        if (i == 0) sample.start = HostStart{1.7e9, 0.1, 0, 2, -1};
        file << io::host_line(sample);
      }
    }
    const std::string analyze = "analyze " + run.string();
    const Json own = parsed(test::run_cox(analyze + " --json").output);
    const Json& idle = *own.find("idle");
    CHECK(idle.find("watched_seconds")->number == doctest::Approx(10));
    CHECK(idle.find("seconds")->find("data")->number == doctest::Approx(2.5));
    CHECK(idle.find("seconds")->find("waiting_for_rank")->number == doctest::Approx(7.5));
    CHECK(idle.find("waiting_for")->find("2")->number == doctest::Approx(7.5));
    CHECK(idle.find("ranks")->items.at(2).find("seconds")->find("data")->number ==
          doctest::Approx(10));
    const Outcome text = test::run_cox(analyze);
    CHECK(text.says("waiting for a rank"));
    CHECK(text.says("for rank 2"));
    CHECK(parsed(test::run_cox(analyze + " --json --rules pytscope").output).find("idle") ==
          nullptr);
    const std::string page = (run / "page.html").string();
    CHECK(test::run_cox("report " + run.string() + " --out " + page).exit_code == 0);
    const auto html = io::read_file(page, 16 << 20);
    REQUIRE(html.ok());
    CHECK(html->find("<h2>Idle time</h2>") != std::string::npos);
    std::filesystem::remove_all(run);
  }

  TEST_CASE("every published comparison has the published differences") {
    const Json all = expected();
    for (const Json& item : all.find("diff")->items) {
      const Outcome outcome =
          test::run_cox("diff " + run_of(item.find("a")->string) + " " +
                        run_of(item.find("b")->string) + " --rules pytscope --json");
      check_equal(item, parsed(outcome.output), item.find("b")->string);
    }
  }

  TEST_CASE("our own rules name both of two slow ranks, and a budget sums to the wall time") {
    const Outcome outcome = test::run_cox("analyze " + run_of("two-stragglers") + " --json");
    const Json json = parsed(outcome.output);
    const Json& first = json.find("findings")->items.at(0);
    CHECK(first.find("code")->string == "DIST.STRAGGLER");
    REQUIRE(first.find("ranks")->items.size() == 2);
    CHECK(first.find("ranks")->items[0].number == 1);
    CHECK(first.find("ranks")->items[1].number == 3);
    double sum = 0;
    for (const Json& line : json.find("budget")->find("lines")->items)
      sum += line.find("seconds")->number;
    CHECK(sum == doctest::Approx(json.find("budget")->find("wall_seconds")->number));
  }

  TEST_CASE("FLOPs and peaks that the record does not state are counted and looked up") {
    const auto run = std::filesystem::temp_directory_path() / "cox-analyze-flops";
    std::filesystem::remove_all(run);
    std::filesystem::copy(run_of("healthy"), run, std::filesystem::copy_options::recursive);
    const std::string analyze = "analyze " + run.string();
    CHECK(test::run_cox(analyze).says("All that the model computes counts as useful"));
    OperatorTable table;
    table.steps = 10;
    table.blocks = {{"", 0.1, 0.2}};
    OperatorRow row{"aten::mm", "", 20, 1000, 4096, {}};
    row.flops = OperatorFlops{3'000'000'000'000, 6'000'000'000'000};
    table.rows = {row};
    std::ofstream(run / io::kOperatorTableName) << io::to_json(table);
    const double seconds = parsed(test::run_cox(analyze + " --json").output)
                               .find("timing")
                               ->find("mean_step_time")
                               ->number;
    struct Device {
      const char* name;
      const char* shown;
      double flops;
    };
    for (const Device& device :
         {Device{"NVIDIA A100-SXM4-80GB", "peak of a100: 312 TFLOP/s", 312e12},
          Device{"NVIDIA L40S", "peak of l40s: 362 TFLOP/s", 362e12},
          Device{"NVIDIA H100 PCIe", "peak of h100 pcie: 756 TFLOP/s", 756e12},
          Device{"NVIDIA GB200", "peak of gb200: 2500 TFLOP/s", 2500e12},
          Device{"AMD Instinct MI250X", "peak of mi250x: 383 TFLOP/s", 383e12}}) {
      CAPTURE(device.name);
      rename_device(run / "run.json", device.name);
      const Outcome outcome = test::run_cox(analyze);
      CHECK(outcome.says("FLOPs as operators.json counts them"));
      CHECK_MESSAGE(outcome.says(device.shown), outcome.output);
      const Json json = parsed(test::run_cox(analyze + " --json").output);
      CHECK(json.find("budget")->find("mfu")->number ==
            doctest::Approx(0.9e12 / seconds / device.flops));
    }
    const Outcome given =
        test::run_cox(analyze + " --flops-per-step 1e12 --peak-tflops 100 --json");
    CHECK(parsed(given.output).find("budget")->find("mfu")->number ==
          doctest::Approx(1e12 / seconds / 100e12));
    rename_device(run / "run.json", "Another device");
    CHECK(test::run_cox(analyze).says("All that the model computes counts as useful"));
    std::filesystem::remove_all(run);
  }

  TEST_CASE("the warm-up that is asked for is left out by our own rules, too") {
    const auto steps = [](const std::string& arguments) {
      const Json json = parsed(test::run_cox("analyze " + run_of("healthy") + arguments).output);
      return json.find("timing")->find("n_steps")->number;
    };
    CHECK(steps(" --json --warmup 30") == 70);
    CHECK(steps(" --json --warmup 0") == 100);
  }

  TEST_CASE("exit codes tell severe findings, differences and bad input") {
    const auto code = [](const std::string& arguments) {
      return test::run_cox(arguments).exit_code;
    };
    CHECK(code("analyze " + run_of("two-stragglers") + " --fail-on high") == 1);
    CHECK(code("analyze " + run_of("jitter") + " --fail-on high") == 0);
    CHECK(code("analyze " + run_of("healthy") + " --fail-on low") == 0);
    CHECK(code("analyze " + run_of("no-such-run")) == 2);
    CHECK(code("diff " + run_of("healthy") + " " + run_of("healthy")) == 0);
    CHECK(code("diff " + run_of("diff-loss-a") + " " + run_of("diff-loss-b")) == 1);
    CHECK(code("diff " + run_of("diff-loss-a") + " " + run_of("diff-loss-b") +
               " --loss-tolerance 1e-3") == 0);
    CHECK(code("diff " + run_of("healthy") + " " + run_of("no-such-run")) == 2);
  }

  TEST_CASE("the page fits terminals of any width from 40 columns on") {
    for (const std::size_t columns : {40, 52, 60, 80, 120, 300}) {
      const Variable width("COLUMNS", std::to_string(columns));
      for (const char* name : {"two-stragglers", "straggler", "diverged", "healthy"})
        check_width("analyze " + run_of(name), std::min<std::size_t>(columns, 120));
      check_width("diff " + run_of("diff-loss-a") + " " + run_of("diff-loss-b"),
                  std::min<std::size_t>(columns, 120));
    }
  }

  TEST_CASE("there are colours when they are asked for, and not beyond NO_COLOR") {
    const std::string analyze = "analyze " + run_of("straggler");
    const Outcome plain = test::run_cox(analyze);
    CHECK(plain.says("Rank 2 is slower than the others"));
    CHECK_FALSE(plain.says("\x1b["));
    CHECK(test::run_cox(analyze + " --color always").says("\x1b["));
    const Variable forced("FORCE_COLOR", "1");
    CHECK(test::run_cox(analyze).says("\x1b["));
    CHECK_FALSE(test::run_cox(analyze + " --color never").says("\x1b["));
  }

  TEST_CASE("a directory with a trace alone is analysed, and what is missing is told") {
    const auto run = std::filesystem::temp_directory_path() / "cox-analyze-trace-alone";
    std::filesystem::remove_all(run);
    std::filesystem::create_directories(run);
    CHECK(test::run_cox("analyze " + run.string()).exit_code == 2);
    std::ofstream(run / "trace.json")
        << R"({"traceEvents":[)"
        << R"({"ph":"X","cat":"kernel","name":"gemm","pid":0,"ts":0,"dur":60000},)"
        << R"({"ph":"X","cat":"kernel","name":"ncclAllReduce","pid":0,"ts":60000,"dur":40000},)"
        << R"({"ph":"X","cat":"kernel","name":"gemm","pid":1,"ts":0,"dur":100000}]})";
    const Outcome text = test::run_cox("analyze " + run.string());
    CHECK(text.exit_code == 0);
    CHECK(text.says("cox-analyze-trace-alone: no steps recorded"));
    CHECK(text.says("DIST.EXPOSED_COMM"));
    CHECK(text.says("costs 20.0 ms (20.0 % of wall time)"));
    CHECK(text.says("Kernels of the trace"));
    CHECK(text.says("About the record"));
    CHECK_FALSE(text.says("Steps of rank"));
    CHECK_FALSE(text.says("Where "));
    const Json own = parsed(test::run_cox("analyze " + run.string() + " --json").output);
    CHECK(own.find("trace")->find("exposed_comm_time")->number == 0);  // hidden by device 1
    REQUIRE(own.find("trace_devices")->items.size() == 2);
    CHECK(own.find("trace_devices")->items[0].find("exposed_comm_time")->number ==
          doctest::Approx(0.04));
    REQUIRE(own.find("gaps")->items.size() == 1);
    CHECK(own.find("gaps")->items[0].string.ends_with(
        "found neither. Step times, ranks, memory and losses are not known."));
    CHECK(test::run_cox("analyze " + run.string() + " --rules pytscope").exit_code == 0);
    const std::string page = (run / "page.html").string();
    CHECK(test::run_cox("report " + run.string() + " --out " + page).says("1 finding"));
    CHECK(test::run_cox("trace " + run.string()).exit_code == 2);
    std::filesystem::remove_all(run);
  }

  TEST_CASE("runs of other ranks or other steps are not equal") {
    const auto folder = std::filesystem::temp_directory_path() / "cox-diff-ranks";
    std::filesystem::remove_all(folder);
    std::filesystem::copy(run_of("two-stragglers"), folder,
                          std::filesystem::copy_options::recursive);
    std::filesystem::remove_all(folder / "rank3");
    const Outcome outcome =
        test::run_cox("diff " + run_of("two-stragglers") + " " + folder.string());
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.says("only A has a record of rank"));
    std::filesystem::remove_all(folder);
  }

  TEST_CASE("a comparison of which the warm-up leaves nothing is none, and says so in a line") {
    const std::string runs = "diff " + run_of("healthy") + " " + run_of("healthy");
    CHECK(test::run_cox(runs + " --warmup 99").exit_code == 0);
    for (const char* rules : {"", " --rules pytscope", " --json"}) {
      const Outcome outcome = test::run_cox(runs + " --warmup 100" + rules);
      CHECK(outcome.exit_code == 2);
      CHECK(outcome.lines() == 1);
      CHECK(outcome.says("fewer than the 100 steps that each rank of A has"));
    }
  }

  TEST_CASE("a comparison tells what is doubtful about a record") {
    const auto folder = std::filesystem::temp_directory_path() / "cox-diff-gaps";
    std::filesystem::remove_all(folder);
    std::filesystem::copy(run_of("two-stragglers"), folder,
                          std::filesystem::copy_options::recursive);
    std::ofstream(folder / "rank1" / "steps.jsonl", std::ios::app) << "{\"step\":";
    const std::string runs = "diff " + run_of("two-stragglers") + " " + folder.string();
    const Outcome outcome = test::run_cox(runs);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.says("B: rank 1: the last line is cut off"));
    CHECK(test::run_cox(runs + " --json").says("B: rank 1: the last line is cut off"));
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace cox
