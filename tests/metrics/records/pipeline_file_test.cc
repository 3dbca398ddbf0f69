// Schedules of pipelines from files: both forms, and bad input.
#include "metrics/records/pipeline_file.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "metrics/analysis/findings/figures.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;

std::string kernel(int device, const char* name, double start_us, double duration_us) {
  return "{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"" + std::string(name) +
         "\",\"pid\":" + std::to_string(device) + ",\"ts\":" + std::to_string(start_us) +
         ",\"dur\":" + std::to_string(duration_us) + "}";
}

// Returns two stages. The second works half as long: receiving is no work.
std::string two_devices() {
  return "{\"schemaVersion\":1,\"deviceProperties\":[{\"id\":0}],\"traceEvents\":[" +
         kernel(7, "gemm", 0, 1000) + "," + kernel(7, "gemm", 500, 500) + "," +
         kernel(3, "ncclSendRecv", 0, 500) + "," + kernel(3, "gemm", 500, 500) + "]}";
}

diagnosis::Pipeline pipeline_in(const std::string& text) {
  const auto file = io::parse_pipeline(text);
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  const auto pipeline = diagnosis::pipeline_of(file->intervals, file->microbatches);
  REQUIRE(pipeline);
  return *pipeline;
}

TEST_SUITE("records.pipeline_file") {
  TEST_CASE("a schedule says its micro-batches, or that nobody knows them") {
    const auto known = pipeline_in(
        "{\"name\":\"x\",\"microbatches\":1,\"more\":{\"intervals\":[[9]]},"
        "\"intervals\":[[0,0,1],[1,1,2]]}");
    CHECK(known.bubble == 0.5);
    CHECK(known.ideal_bubble == 0.5);
    CHECK(known.excess() == 0.0);
    const auto unknown = pipeline_in("{\"intervals\":[[0,0,1],[4,1,2]],\"microbatches\":null}");
    CHECK(unknown.stage_bubbles.size() == 2);
    CHECK_FALSE(unknown.excess());
  }

  TEST_CASE("of a trace each device is a stage, busy while a kernel of it computes") {
    const auto file = io::parse_pipeline(two_devices());
    REQUIRE(file.ok());
    CHECK(file->intervals.size() == 2);
    const auto pipeline = pipeline_in(two_devices());
    CHECK(pipeline.stage_bubbles.at(0) == doctest::Approx(0.5));  // device 3
    CHECK(pipeline.stage_bubbles.at(1) == doctest::Approx(0));
    CHECK(pipeline.bubble == doctest::Approx(0.25));
  }

  TEST_CASE("files of both forms are read, packed or not, and errors name them") {
    const fs::path folder = fs::temp_directory_path() / "cox-pipeline-file";
    fs::remove_all(folder);
    fs::create_directories(folder);
    const auto write = [&folder](const char* name, const std::string& text) {
      std::ofstream(folder / name, std::ios::binary) << text;
      return folder / name;
    };
    CHECK(io::read_pipeline(write("s.json", "{\"intervals\":[[0,0,1],[1,1,2]]}")).ok());
    const fs::path trace = write("t.json", two_devices());
    CHECK(io::read_pipeline(trace)->intervals.size() == 2);
    REQUIRE(std::system(("gzip '" + trace.string() + "'").c_str()) == 0);
    CHECK(io::read_pipeline(trace.string() + ".gz")->intervals.size() == 2);
    const fs::path one = write("one.json", "[" + kernel(0, "gemm", 0, 5) + "]");
    CHECK(io::read_pipeline(one).status().message().find("one.json: expected at least two") !=
          std::string::npos);
    CHECK(io::read_pipeline(folder / "none.json").status().code() == StatusCode::not_found);
    fs::remove_all(folder);
  }

  TEST_CASE("what is no schedule gives one sentence") {
    const std::vector<std::string> rows = {
        "",
        "7",
        "{}",
        "{\"intervals\":7}",
        "{\"intervals\":[]}",
        "{\"intervals\":[[0,0,1]]}",
        "{\"intervals\":[[0,0,0],[1,0,0]]}",
        "{\"intervals\":[[0,0,1],[1,1]]}",
        "{\"intervals\":[[0,0,1],[1,1,2,3]]}",
        "{\"intervals\":[[0,0,1],[1,1,\"2\"]]}",
        "{\"intervals\":[[0,0,1],[1,1,[2]]]}",
        "{\"intervals\":[[0,0,1],7]}",
        "{\"intervals\":[[0,0,1],{\"a\":1}]}",
        "{\"intervals\":[[0,0,1],[1,2,1]]}",
        "{\"intervals\":[[0,0,1],[-1,1,2]]}",
        "{\"intervals\":[[0,0,1],[0.5,1,2]]}",
        "{\"intervals\":[[0,0,1],[1024,1,2]]}",
        "{\"intervals\":[[0,-1e300,1],[1,1,2]]}",
        "{\"intervals\":[[0,0,1],[1,1,2]],\"microbatches\":0}",
        "{\"intervals\":[[0,0,1],[1,1,2]],\"microbatches\":1.5}",
        "{\"intervals\":[[0,0,1],[1,1,2]],\"microbatches\":\"8\"}",
        "{\"intervals\":[[0,0,1],[1,1,2]]",
        "[]",
        "{\"traceEvents\":[" + kernel(0, "gemm", 0, 1) + "," + kernel(1, "ncclX", 0, 1) + "]}"};
    for (const std::string& text : rows) {
      CAPTURE(text);
      const Status status = io::parse_pipeline(text).status();
      CHECK_FALSE(status.ok());
      CHECK(status.message().find('\n') == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace cox
