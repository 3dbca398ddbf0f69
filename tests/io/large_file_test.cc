#include "coordinator/io/large_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "coordinator/io/file.h"
#include "tests/sdk/temp_folder.h"
#include "tests/support/small_files.h"

#include <doctest/doctest.h>

namespace {

using namespace cox;
using namespace cox::io;

constexpr std::size_t kBuffer = std::size_t{8} << 20;

std::string random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t next = random();
    std::memcpy(bytes.data() + at, &next, std::min(size - at, sizeof next));
  }
  return bytes;
}

Status write_in_pieces(LargeFile& file, const std::string& bytes, std::size_t most) {
  std::mt19937_64 random(most);
  std::span<const std::byte> left = std::as_bytes(std::span(bytes));
  while (!left.empty()) {
    const std::size_t piece = std::min<std::size_t>(left.size(), 1 + random() % most);
    if (Status written = file.write(left.first(piece)); !written.ok()) return written;
    left = left.subspan(piece);
  }
  return ok_status();
}

}  // namespace

TEST_SUITE("io.large_file") {
  TEST_CASE("holds the bytes that it was given, whatever their number and pieces") {
    const TempFolder disk;
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, kBlockBytes, kBuffer - 1, kBuffer, kBuffer + 1,
          2 * kBuffer, 3 * kBuffer + kBlockBytes, 2 * kBuffer + 12'345}) {
      CAPTURE(size);
      const std::string bytes = random_bytes(size, size);
      for (const std::size_t most : {std::size_t{1} << 16, 3 * kBuffer}) {
        auto file = LargeFile::create(disk / "a");
        REQUIRE(file.ok());
        REQUIRE(write_in_pieces(*file, bytes, most).ok());
        REQUIRE(file->commit().ok());
        CHECK(read_bytes(disk / "a") == bytes);
        CHECK(disk.files() == 1);
      }
    }
  }

  TEST_CASE("goes through the system's memory where a file system cannot do without") {
    const std::filesystem::path memory = "/dev/shm";
    if (!std::filesystem::is_directory(memory)) return;
    const std::filesystem::path target = memory / ("cox-large-" + std::to_string(::getpid()));
    const std::string bytes = random_bytes(2 * kBuffer + 77, 3);
    auto file = LargeFile::create(target);
    REQUIRE(file.ok());
    REQUIRE(write_in_pieces(*file, bytes, kBuffer).ok());
    REQUIRE(file->commit().ok());
    CHECK(read_bytes(target) == bytes);
    std::filesystem::remove(target);
  }

  TEST_CASE("that cannot be written says so, and leaves the file before as it was") {
    const TempFolder disk;
    disk.write("a", "old");
    const std::string bytes = random_bytes(5 * kBuffer, 4);
    {
      auto file = LargeFile::create(disk / "a");
      REQUIRE(file.ok());
      const test::SmallFiles small(kBuffer + kBuffer / 2);
      Status written = write_in_pieces(*file, bytes, kBuffer);
      if (written.ok()) written = file->commit();
      CHECK(written.code() == StatusCode::resource_exhausted);
      CHECK(written.message().find((disk / "a").string()) != std::string::npos);
    }
    CHECK(read_bytes(disk / "a") == "old");
    CHECK(disk.files() == 1);
  }

  TEST_CASE("that is given up while a buffer is written leaves nothing") {
    const TempFolder disk;
    {
      auto file = LargeFile::create(disk / "a");
      REQUIRE(file.ok());
      REQUIRE(write_in_pieces(*file, random_bytes(2 * kBuffer, 5), kBuffer).ok());
    }
    CHECK(disk.files() == 0);
  }
}
