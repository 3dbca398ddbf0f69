#include "coordinator/transport/shared/shared_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() : path(fs::temp_directory_path() / ("cox-shared-" + std::to_string(getpid()))) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

TEST_SUITE_BEGIN("shared file");

TEST_CASE("all ranks map one piece of zeroed memory and its name is gone") {
  const Folder folder;
  const LoopbackWorld world(3);
  const auto results = on_every_rank(world, 3, [&](Communicator& c) -> std::string {
    auto segment = share_file(c, 5000, folder.path.string(), patient());
    if (!segment.ok()) return segment.status().text();
    if (segment->bytes().size() != 5000) return "wrong size";
    const auto me = static_cast<std::size_t>(c.rank().value());
    if (segment->bytes()[me] != std::byte{0}) return "not zeroed";
    segment->bytes()[me] = std::byte{9};
    std::array<std::byte, 1> mine{};
    std::array<std::byte, 3> all{};
    static_cast<void>(finish(c, c.start_all_gather(mine, all), patient()));
    const bool seen = segment->bytes()[0] == std::byte{9} && segment->bytes()[2] == std::byte{9};
    return seen ? "" : "ranks see different memory";
  });
  for (const std::string& text : results) CHECK(text == "");
  CHECK(fs::is_empty(folder.path));
}

TEST_CASE("a folder that cannot hold it is an error on every rank that says what to do") {
  const Folder folder;
  struct Row {
    std::string path;
    std::size_t bytes;
  };
  // An impossible size imitates a full file system.
  const std::vector<Row> rows = {{folder.path / "missing", 4096},
                                 {folder.path, std::size_t{1} << 62}};
  for (const Row& row : rows) {
    const LoopbackWorld world(2);
    const auto results = on_every_rank(world, 2, [&](Communicator& c) -> std::string {
      const auto refused = share_file(c, row.bytes, row.path, patient());
      if (refused.status().code() != StatusCode::resource_exhausted) return "not refused";
      return refused.status().message();
    });
    for (const std::string& text : results) {
      CHECK(text.find("rank 0 of this node: shared memory in " + row.path) != std::string::npos);
      CHECK(text.find(std::to_string(row.bytes) + " bytes") != std::string::npos);
      CHECK(text.find("COX_SHM_DIR") != std::string::npos);
    }
    CHECK(fs::is_empty(folder.path));
  }
}

TEST_CASE("what a killed process left is removed, and what a living one makes is not") {
  const Folder folder;
  std::ofstream(folder.path / "coxswain-1-2") << "left";
  std::ofstream(folder.path / "coxswain-3-4") << "being made";
  std::ofstream(folder.path / "somebody's own") << "kept";
  fs::create_symlink("somebody's own", folder.path / "coxswain-link");
  const int made = open((folder.path / "coxswain-3-4").c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(flock(made, LOCK_EX) == 0);
  const LoopbackWorld world(2);
  const auto results = on_every_rank(world, 2, [&](Communicator& c) {
    return share_file(c, 100, folder.path.string(), patient()).status().text();
  });
  for (const std::string& text : results) CHECK(text == Status().text());
  CHECK_FALSE(fs::exists(folder.path / "coxswain-1-2"));
  for (const char* kept : {"coxswain-3-4", "somebody's own", "coxswain-link"})
    CHECK(fs::exists(folder.path / kept));
  close(made);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
