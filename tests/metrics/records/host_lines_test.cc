// host.jsonl: lines written and read, files thinned out, and bad files.
#include "metrics/records/host_lines.h"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "metrics/analysis/timeline/idle_time.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(fs::temp_directory_path() / ("cox-host-" + name)) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

HostSample full_sample() {
  HostSample out;
  out.timestamp = 1.7e9 + 0.1;
  out.step = 212;
  out.activity = Activity::waiting;
  out.activity_seconds = 0.025;
  out.user_seconds = 12.345;
  out.system_seconds = 0.5;
  out.resident_bytes = 123456789;
  NodeCounters node;
  node.user_seconds = 1000.25;
  node.memory_used_bytes = 6e10;
  node.network_sent_bytes = 1.5e12;
  out.node = node;
  out.gpus = {{0.75, 8e10}, {kUnknown, 1e9}};
  out.start = HostStart{1.7e9 - 5, 0.1, 4, 96, 2};
  return out;
}

std::vector<HostSample> samples_in(const fs::path& file) {
  std::vector<HostSample> out;
  REQUIRE(io::each_host_sample(file, [&](const HostSample& s) { out.push_back(s); }).ok());
  return out;
}

// Returns a start and so many samples, a tenth of a second apart, each slightly late.
std::string lines_of(std::size_t count, double begin = 1.7e9) {
  std::mt19937 random(5);
  std::string out;
  for (std::size_t i = 0; i < count; ++i) {
    HostSample sample;
    sample.timestamp = begin + 0.1 * static_cast<double>(i) + 0.01 * (random() % 10) / 10.0;
    sample.step = static_cast<std::int64_t>(i);
    sample.user_seconds = 0.05 * static_cast<double>(i);
    if (i == 0) sample.start = HostStart{begin - 1, 0.1, 0, 2, -1};
    out += io::host_line(sample);
  }
  return out;
}

TEST_SUITE("records.host_lines") {
  TEST_CASE("a sample comes back from its line, and what is not known stays so") {
    const Folder folder("whole");
    const auto found = samples_in(folder.write("host.jsonl", io::host_line(full_sample())));
    REQUIRE(found.size() == 1);
    const HostSample& s = found[0];
    CHECK(s.timestamp == doctest::Approx(1.7e9 + 0.1));
    CHECK(s.step == 212);
    CHECK(s.activity == Activity::waiting);
    CHECK(s.activity_seconds == doctest::Approx(0.025));
    CHECK(s.cpu_seconds() == doctest::Approx(12.845));
    CHECK(s.resident_bytes == 123456789);
    REQUIRE(s.node);
    CHECK(s.node->user_seconds == 1000.25);
    CHECK(s.node->memory_used_bytes == 6e10);
    CHECK(s.node->network_sent_bytes == 1.5e12);
    CHECK_FALSE(is_known(s.node->disk_read_bytes));
    REQUIRE(s.gpus.size() == 2);
    CHECK(s.gpus[0].busy_ratio == 0.75);
    CHECK_FALSE(is_known(s.gpus[1].busy_ratio));
    CHECK(s.gpus[1].memory_bytes == 1e9);
    REQUIRE(s.start);
    CHECK(s.start->started_seconds == 1.7e9 - 5);
    CHECK(s.start->node == 4);
    CHECK(s.start->cores == 96);
    CHECK(s.start->gpus == 2);
    const auto plain = samples_in(folder.write("plain", io::host_line({.timestamp = 5})));
    CHECK_FALSE(plain[0].node);
    CHECK_FALSE(plain[0].start);
    CHECK(plain[0].gpus.empty());
  }

  TEST_CASE(
      "damaged, torn and foreign lines are passed over, numbers that cannot be are not known") {
    const Folder folder("bad");
    const std::string good = io::host_line(full_sample());
    const std::string odd =
        "{\"timestamp\":7,\"step\":1,\"activity\":99,\"user\":-1,\"resident\":NaN,"
        "\"node_user\":Infinity,\"gpu0_busy\":2,\"node\":\"x\"}\n";
    const auto found = samples_in(folder.write(
        "host.jsonl", good + "\n" + odd +
                          "{\"step\":3}\n\xff\xfe\n{\"timestamp\":1e300,\"step\":1}\n" +
                          good.substr(0, good.size() / 2)));
    REQUIRE(found.size() == 2);
    CHECK(found[1].activity == Activity::unknown);
    CHECK(found[1].user_seconds == 0);
    CHECK_FALSE(is_known(found[1].resident_bytes));
    CHECK_FALSE(found[1].node);
    CHECK(found[1].gpus.empty());
    CHECK(io::each_host_sample(folder.path() / "none", [](const HostSample&) {}).code() ==
          StatusCode::not_found);
    fs::create_symlink(folder.path() / "host.jsonl", folder.path() / "link");
    CHECK_FALSE(io::each_host_sample(folder.path() / "link", [](const HostSample&) {}).ok());
  }

  TEST_CASE(
      "a file that is thinned out keeps its starts and every second moment, on all ranks the "
      "same") {
    const Folder folder("thin");
    const std::string lines = lines_of(1000);
    const fs::path a = folder.write("a", lines + "no sample\n{\"timestamp\":17");
    const fs::path b = folder.write("b", lines);
    REQUIRE(io::thin_out(a, 0.2).ok());
    REQUIRE(io::thin_out(b, 0.2).ok());
    CHECK(text_of(a) == text_of(b));
    const auto found = samples_in(a);
    CHECK(found.size() == 500);
    CHECK(found[0].start);
    for (std::size_t i = 1; i < found.size(); ++i)
      CHECK(found[i].timestamp - found[i - 1].timestamp == doctest::Approx(0.2).epsilon(0.06));
    REQUIRE(io::thin_out(a, 0.4).ok());
    CHECK(samples_in(a).size() == 250);
    CHECK(samples_in(a).back().user_seconds == doctest::Approx(49.8));
    CHECK_FALSE(io::thin_out(folder.path() / "none", 0.2).ok());
  }

  TEST_CASE("a reader keeps at most so many samples, and the whole time") {
    const Folder folder("most");
    const fs::path file = folder.write("host.jsonl", lines_of(5000) + lines_of(300, 1.7e9 + 1000));
    const auto track = io::read_host_samples(file, 3, 400);
    REQUIRE(track.ok());
    CHECK(track->rank == 3);
    CHECK(track->samples.size() <= 401);
    CHECK(track->samples.size() > 150);
    CHECK(track->samples.back().seconds > 1.7e9 + 1020);
    REQUIRE(track->starts.size() == 2);
    CHECK(track->starts[0].started_seconds == 1.7e9 - 1);
    CHECK(track->samples[track->starts[1].first].seconds == doctest::Approx(1.7e9 + 1000));
    const auto whole = io::read_host_samples(file, 3, 10000);
    CHECK(whole->samples.size() == 5300);
  }

  TEST_CASE("tracks are read of all ranks that have a host timeline") {
    const Folder folder("idle");
    folder.write("rank0/host.jsonl", lines_of(50));
    std::vector<std::string> gaps;
    std::vector<io::RankFolder> ranks = {{0, folder.path() / "rank0", {}}};
    REQUIRE_FALSE(io::read_host_tracks(ranks, gaps).empty());
    CHECK(gaps.empty());
    ranks.push_back({1, folder.path() / "rank1", {}});
    REQUIRE_FALSE(io::read_host_tracks(ranks, gaps).empty());
    CHECK(gaps.size() == 1);
    CHECK(io::read_host_tracks({ranks[1]}, gaps).empty());
    fs::create_directories(folder.path() / "rank1" / "host.jsonl");
    gaps.clear();
    CHECK(io::read_host_tracks(ranks, gaps).size() == 1);
    CHECK(gaps.size() == 2);
  }

  TEST_CASE("whatever a file says, a reader keeps its bounds") {
    const Folder folder("fuzz");
    std::mt19937_64 random(77);
    const std::string lines = lines_of(200);
    for (int trial = 0; trial < 200; ++trial) {
      std::string text = lines;
      for (int i = 0; i < 60; ++i) text[random() % text.size()] = static_cast<char>(random());
      text.resize(text.size() - random() % 300);
      const fs::path file = folder.write("host.jsonl", text);
      const auto track = io::read_host_samples(file, 0, 32);
      REQUIRE(track.ok());
      CHECK(track->samples.size() <= 33);
      for (const auto& start : track->starts) CHECK(start.first < track->samples.size());
      const diagnosis::IdleTime idle = diagnosis::idle_time_of({*track});
      for (const double seconds : idle.seconds) CHECK((std::isfinite(seconds) && seconds >= 0));
    }
  }
}

}  // namespace
}  // namespace cox
