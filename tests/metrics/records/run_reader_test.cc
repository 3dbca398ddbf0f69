// Run directories as records: good input and bad.
#include "metrics/records/run_reader.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "metrics/records/kernel_trace.h"
#include "metrics/records/kernel_trace_file.h"
#include "metrics/records/step_lines.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("cox-run-" + std::to_string(counter_++))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  StatusCode code() const { return io::read_run(path_).status().code(); }

 private:
  static inline int counter_ = 0;
  fs::path path_;
};

diagnosis::RankRecord read(const std::string& text, std::size_t piece) {
  diagnosis::RankRecord rank;
  io::StepLines lines(rank);
  for (std::size_t at = 0; at < text.size(); at += piece)
    lines.take(std::string_view(text).substr(at, piece));
  lines.finish();
  return rank;
}

const std::string kLine =
    "{\"step\":3,\"timestamp\":7.5,\"phases\":{\"data\":0.001,\"forward\":1.2345678901234567e-3},"
    "\"scalars\":{\"loss\":-Infinity,\"note\":\"x\"},\"plan\":4,\"skipped\":true,"
    "\"precision\":{\"fp32\":[1,{}]}}\n";

TEST_SUITE("records.run_reader") {
  TEST_CASE("a step comes back exactly, however the bytes are cut") {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, kLine.size() * 2}) {
      const diagnosis::RankRecord rank = read(kLine + kLine, piece);
      REQUIRE(rank.size() == 2);
      CHECK(rank.steps.values() == std::vector<double>{3, 3});
      CHECK(rank.phases.at("forward").values()[1] == 1.2345678901234567e-3);
      CHECK(rank.scalars.at("loss").values()[0] == -INFINITY);
      CHECK(rank.own.at("plan").values()[0] == 4);
      CHECK(rank.own.at("skipped").values()[0] == 1);
      CHECK_FALSE(rank.scalars.contains("note"));
    }
  }

  TEST_CASE("columns give back every value, packed or not") {
    diagnosis::Column column;
    std::vector<double> put;
    for (std::size_t i = 0; i < 3 * diagnosis::Column::kBlock + 5; ++i) {
      const double n = static_cast<double>(i);
      const double values[] = {n * 0.001, 1.75e9 + n * 0.033, std::sin(n), -n, 1e-9 * n};
      put.push_back(i % 7 == 3 ? diagnosis::absent() : values[i / diagnosis::Column::kBlock]);
      column.push(put.back());
    }
    const std::vector<double> back = column.values();
    REQUIRE(back.size() == put.size());
    for (std::size_t i = 0; i < put.size(); ++i)
      REQUIRE(std::bit_cast<std::uint64_t>(back[i]) == std::bit_cast<std::uint64_t>(put[i]));
    CHECK(column.values(5000).size() == put.size() - 5000);
  }

  TEST_CASE("a step without a value is told from one whose value is NaN") {
    const auto rank = read("{\"step\":0}\n{\"step\":1,\"scalars\":{\"loss\":NaN}}\n", 999);
    const std::vector<double> loss = rank.scalars.at("loss").values();
    CHECK(diagnosis::is_absent(loss[0]));
    CHECK((std::isnan(loss[1]) && !diagnosis::is_absent(loss[1])));
  }

  TEST_CASE("damaged lines are counted and a torn end is none of them") {
    diagnosis::RankRecord rank;
    io::StepLines lines(rank);
    lines.take(
        "{\"step\":1}\nnonsense\n{\"step\":\"x\"}\n{\"step\":1.5}\n{\"step\":2}x\n{\"step\":2");
    lines.finish();
    CHECK(rank.size() == 1);
    CHECK(lines.damaged() == 4);
    CHECK(lines.is_torn());
  }

  TEST_CASE("buckets are those of their line, and what is no list of four numbers is none") {
    std::vector<std::vector<double>> seen;
    io::StepLineReader lines([&](const diagnosis::StepLine& line) {
      seen.emplace_back();
      for (const auto& b : line.buckets)
        seen.back().insert(seen.back().end(), {b.buckets, b.bytes, b.begin_seconds, b.end_seconds});
    });
    const auto take = [&lines](const std::string& buckets) {
      lines.take("{\"step\":1,\"buckets\":" + buckets + ",\"round\":2}\n");
    };
    take("[[1,64,-0.5,0.25],[2,128,-0.25,0.5]]");
    lines.take("{\"step\":2}\n");
    take("[ [1,2,3] , [1,2,3,4,5], [1,2,3,\"4\"], [1,2,3,[4]], [], 7, {\"a\":[1]}, [4,3,2,NaN] ]");
    for (const char* odd : {"[]", "3", "null", "{}", "\"x\"", "[[]]"}) take(odd);
    std::string many = "[[1,2,3,4]";
    for (int i = 0; i < 5000; ++i) many += ",[1,2,3,4]";
    take(many + "]");
    CHECK(lines.damaged() == 0);
    REQUIRE(seen.size() == 10);
    CHECK(seen[0] == std::vector<double>{1, 64, -0.5, 0.25, 2, 128, -0.25, 0.5});
    CHECK(seen[1].empty());
    REQUIRE(seen[2].size() == 4);
    CHECK(std::isnan(seen[2][3]));
    for (std::size_t i = 3; i < 9; ++i) CHECK(seen[i].empty());
    CHECK(seen[9].size() == 4 * diagnosis::kMostBucketSpans);
    for (const char* torn :
         {"[[1,2,3,4]", "[[1,2,3,4", "[[1,2,,4]]", "[[1 2]]", "[[1,2,3,4],]", "[1"})
      take(torn);
    take(std::string(5000, '['));
    CHECK(lines.damaged() == 7);
  }

  TEST_CASE("lines beyond the limit, deep nesting and many names do no harm") {
    const std::string deep(5000, '[');
    const std::string text = "{\"step\":1,\"x\":" + deep + "}\n{\"step\":2,\"y\":\"" +
                             std::string(io::kMaxStepLineBytes, 'y') + "\"}\n";
    CHECK(read(text, 4096).size() == 0);
    std::string names = "{\"step\":1,\"scalars\":{\"a0\":1";
    for (int i = 1; i < 500; ++i) names += ",\"a" + std::to_string(i) + "\":1";
    CHECK(read(names + "}}\n", 4096).scalars.size() == io::kMaxStepColumns);
  }

  TEST_CASE("the machine of a rank is read where it is a rank's number") {
    struct Case {
      const char* environment;
      std::int32_t node;
    } const cases[] = {{R"({"node":4})", 4},
                       {R"({"node":-2})", -1},
                       {R"({"node":"4"})", -1},
                       {R"({"node":1e9})", -1},
                       {"{}", -1},
                       {"[]", -1}};
    for (const Case& c : cases) {
      INFO(c.environment);
      diagnosis::RunInfo info;
      io::read_run_info(std::string(R"({"name":"a","environment":)") + c.environment + "}", info);
      CHECK(info.node == c.node);
    }
  }

  TEST_CASE("bad directories get one sentence each") {
    CHECK(io::read_run("/no/such/run").status().code() == StatusCode::not_found);
    Folder empty;
    CHECK(empty.code() == StatusCode::not_found);
    empty.write("steps.jsonl", "");
    CHECK(empty.code() == StatusCode::data_loss);
    empty.write("steps.jsonl", "\xff\xfe\x00\x01\n\xc3\x28");
    CHECK(empty.code() == StatusCode::data_loss);
    CHECK(io::read_run(empty.path() / "steps.jsonl").status().code() ==
          StatusCode::invalid_argument);

    Folder mixed;
    mixed.write("rank0/steps.jsonl", kLine);
    mixed.write("rank1/steps.jsonl", kLine);
    mixed.write("rank0/run.json", "{\"name\":\"a\"}");
    mixed.write("rank1/run.json", "{\"name\":\"b\"}");
    CHECK(mixed.code() == StatusCode::invalid_argument);
    mixed.write("rank1/run.json", "{\"name\":");
    CHECK(mixed.code() == StatusCode::ok);

    Folder linked;
    fs::create_symlink(mixed.path() / "rank0", linked.path() / "rank0");
    CHECK(linked.code() == StatusCode::failed_precondition);
  }

  TEST_CASE(
      "a rank that left no folder is missing from a whole run, not from a rank's own folder") {
    const auto words = [](const Folder& folder) {
      return io::read_whole_run(folder.path()).status().message();
    };
    Folder run;
    run.write("rank0/steps.jsonl", kLine);
    run.write("rank2/steps.jsonl", kLine);
    CHECK(words(run).find("found none of rank 1") != std::string::npos);
    run.write("rank1/steps.jsonl", "damaged\n" + kLine);
    const auto whole = io::read_whole_run(run.path());
    REQUIRE_MESSAGE(whole.ok(), whole.status().message());
    CHECK(whole->ranks.size() == 3);
    CHECK(whole->gaps == std::vector<std::string>{"rank 1: 1 damaged lines are left out"});
    run.write("rank0/run.json", R"({"world_size": 4, "x": NaN})");
    CHECK(words(run).find("of 4 ranks, found none of rank 3") != std::string::npos);
    CHECK(io::read_whole_run(run.path() / "rank0").ok());
    run.write("rank0/run.json", R"({"world_size": 4, "x)");
    CHECK(io::read_whole_run(run.path()).ok());  // torn, so the world size is unknown
    fs::remove(run.path() / "rank2" / "steps.jsonl");
    CHECK(io::read_whole_run(run.path()).status().code() == StatusCode::not_found);
    fs::create_symlink(run.path() / "rank0" / "steps.jsonl", run.path() / "rank2" / "steps.jsonl");
    CHECK(io::read_whole_run(run.path()).status().code() == StatusCode::failed_precondition);
  }

  TEST_CASE("traces with nonsense in them give their kernels or one sentence") {
    const auto kernels = io::parse_kernel_trace(
        "{\"a\":[1],\"traceEvents\":[{\"ph\":\"X\",\"cat\":\"Kernel\",\"name\":\"ncclX\",\"ts\":1,"
        "\"dur\":2,\"args\":{\"dur\":9}},7,{\"ph\":\"X\",\"cat\":\"kernel\",\"dur\":-1,\"ts\":0}]"
        "}");
    REQUIRE(kernels.ok());
    CHECK(kernels->devices.at(0).communication.size() == 1);
    CHECK(kernels->devices.at(0).compute.empty());
    CHECK_FALSE(io::parse_kernel_trace("{}").ok());
    CHECK_FALSE(io::parse_kernel_trace("[{\"ph\":").ok());
  }

  TEST_CASE("kernels that overlap in any way give the union, and impossible times are counted") {
    std::string text = "[";
    const auto add = [&text](const char* name, double start, double duration) {
      text += (text.size() > 1 ? "," : "") + std::string("{\"ph\":\"X\",\"cat\":\"kernel\",") +
              "\"name\":\"" + name + "\",\"ts\":" + std::to_string(start) +
              ",\"dur\":" + std::to_string(duration) + "}";
    };
    constexpr int kMany = 20000;
    for (int i = 0; i < kMany; ++i) {
      const double at = (i * 7919) % kMany;  // in random order, each overlapping the next nine
      add("gemm", at, 10);
      add("ncclAllReduce", at + 0.5, 1e6);
    }
    add("gemm", 1e300, 1);
    add("gemm", 0, 1e300);
    const auto kernels = io::parse_kernel_trace(text + "]");
    REQUIRE(kernels.ok());
    CHECK(kernels->devices.at(0).compute.size() < 5000);  // merged while reading
    const auto trace = diagnosis::kernel_trace_of(*kernels);
    REQUIRE(trace);
    CHECK(trace->compute_kernels == kMany);
    CHECK(trace->communication_kernels == kMany);
    CHECK(trace->impossible_kernels == 2);
    CHECK(trace->compute_seconds == doctest::Approx((kMany + 9) * 1e-6));
    CHECK(trace->communication_seconds == doctest::Approx(1 + (kMany - 1) * 1e-6));
    CHECK(trace->exposed_seconds == doctest::Approx(1 - 9.5e-6));
  }

  TEST_CASE(
      "what one device computes hides communication of another in the published figure only") {
    const auto kernels = io::parse_kernel_trace(
        "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"ncclX\",\"pid\":0,\"ts\":0,\"dur\":1000},"
        "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"pid\":1,\"ts\":0,\"dur\":1000},"
        "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"gemm\",\"pid\":\"words\",\"ts\":0,\"dur\":250}"
        "]");
    REQUIRE(kernels.ok());
    const auto trace = diagnosis::kernel_trace_of(*kernels);
    REQUIRE(trace);
    CHECK(trace->exposed_fraction() == 0);
    REQUIRE(trace->devices.size() == 2);
    CHECK(trace->devices[0].exposed_seconds == doctest::Approx(750e-6));
    CHECK(trace->devices[1].exposed_seconds == 0);
    CHECK(trace->exposed_of_devices() == doctest::Approx(0.375));
    std::string many = "[0";
    for (int i = 0; i <= 1024; ++i)
      many +=
          ",{\"ph\":\"X\",\"cat\":\"kernel\",\"ts\":0,\"dur\":1,\"pid\":" + std::to_string(i) + "}";
    CHECK(io::parse_kernel_trace(many + "]").status().code() == StatusCode::resource_exhausted);
  }

  TEST_CASE("a packed trace is read as the plain one, and a damaged one gives one sentence") {
    Folder folder;
    std::string text = "{\"traceEvents\":[";
    for (int i = 0; i < 50000; ++i)
      text += std::string(i == 0 ? "" : ",") +
              "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"dur\":1,\"ts\":" +
              std::to_string(2 * i) + "}";
    folder.write("t.json", text + "]}");
    const fs::path path = folder.path() / "t.json";
    const auto plain = io::read_kernel_trace(path);
    REQUIRE(plain.ok());
    REQUIRE(std::system(("gzip -k '" + path.string() + "'").c_str()) == 0);
    const auto packed = io::read_kernel_trace(path.string() + ".gz");
    REQUIRE(packed.ok());
    CHECK(packed->compute_kernels == 50000);
    CHECK(plain->compute_kernels == 50000);
    fs::resize_file(path.string() + ".gz", fs::file_size(path.string() + ".gz") / 2);
    const Status cut = io::read_kernel_trace(path.string() + ".gz").status();
    CHECK(cut.code() == StatusCode::data_loss);
    CHECK(cut.message().find("cut off") != std::string::npos);
    CHECK(cut.message().find('\n') == std::string::npos);
    folder.write("t.json", text);
    CHECK(io::read_kernel_trace(path).status().code() == StatusCode::data_loss);
    folder.write("t.json", text + ",\"" + std::string(std::size_t{40} << 20, 'x') + "\"]}");
    CHECK(io::read_kernel_trace(path).status().message().find("found a longer one") !=
          std::string::npos);
    CHECK(io::read_kernel_trace(folder.path()).status().code() == StatusCode::failed_precondition);
  }
}

}  // namespace
}  // namespace cox
