#include "sdk/src/memory/tier.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "tests/sdk/memory/file_size_limit.h"
#include "tests/sdk/memory/tier_file.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using cox::StatusCode;
using cox::detail::TierFile;
using cox::detail::TierSpace;
using cox::detail::TierThread;
using cox::detail::Transfer;

namespace {

std::vector<char> numbered(std::size_t bytes, char first) {
  std::vector<char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(first + i % 101);
  return data;
}

Transfer transfer(Transfer::Kind kind, std::vector<char>& data, std::int64_t offset) {
  Transfer result;
  result.kind = kind;
  result.data = data.data();
  result.bytes = static_cast<std::int64_t>(data.size());
  result.offset = offset;
  return result;
}

TierThread thread_in(const TempFolder& folder) {
  cox::Result<TierFile> file = TierFile::create(folder.path());
  REQUIRE(file.ok());
  return TierThread(std::move(*file));
}

}  // namespace

TEST_CASE("space on a tier is never given twice, is all given, and closes up when given back") {
  constexpr std::int64_t kPages = 40;
  std::mt19937_64 random(3);
  TierSpace space(kPages * TierSpace::kPage + 100);
  std::array<int, kPages> owners{};
  struct Piece {
    std::int64_t offset, bytes;
  };
  std::vector<Piece> pieces;
  std::int64_t used = 0;
  const auto mark = [&](const Piece& piece, int owner) {
    for (std::int64_t at = piece.offset; at < piece.offset + piece.bytes; at += TierSpace::kPage) {
      int& page = owners.at(static_cast<std::size_t>(at / TierSpace::kPage));
      REQUIRE(page == (owner == 0 ? 1 : 0));
      page = owner;
      used += owner == 0 ? -TierSpace::kPage : TierSpace::kPage;
    }
  };
  for (int i = 0; i < 5000; ++i) {
    const auto bytes = static_cast<std::int64_t>(1 + random() % (5 * TierSpace::kPage));
    if (const auto offset = space.take(bytes)) {
      REQUIRE(*offset % TierSpace::kPage == 0);
      pieces.push_back({*offset, bytes});
      mark(pieces.back(), 1);
    } else if (!pieces.empty()) {
      const std::size_t at = random() % pieces.size();
      space.give_back(pieces[at].offset, pieces[at].bytes);
      mark(pieces[at], 0);
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at));
    }
    REQUIRE(space.used() == used);
  }
  for (const Piece& piece : pieces) space.give_back(piece.offset, piece.bytes);
  CHECK(space.used() == 0);
  CHECK(space.take(kPages * TierSpace::kPage) == 0);
  CHECK_FALSE(space.take(1));
}

TEST_CASE("a tier's file has no name in its folder") {
  const TempFolder folder;
  cox::Result<TierFile> file = TierFile::create(folder.path());
  REQUIRE(file.ok());
  CHECK(folder.files() == 0);
}

TEST_CASE("a folder that is missing or takes no files is an error that names it") {
  const TempFolder folder;
  const auto missing = TierFile::create(folder / "missing");
  CHECK(missing.status().code() == StatusCode::not_found);
  CHECK(missing.status().message().find("missing") != std::string::npos);
  CHECK_FALSE(TierFile::create("/proc/self").ok());
  if (::geteuid() != 0) {  // root ignores permissions
    std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read);
    CHECK(TierFile::create(folder.path()).status().code() == StatusCode::failed_precondition);
    std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  }
}

TEST_CASE("a write beyond the limit on file sizes is an error and no signal") {
  const TempFolder folder;
  cox::Result<TierFile> file = TierFile::create(folder.path());
  REQUIRE(file.ok());
  const std::vector<char> data = numbered(64 << 10, 'a');
  const FileSizeLimit limit(16 << 10);
  CHECK(file->write(data.data(), 64 << 10, 0).code() == StatusCode::resource_exhausted);
  CHECK(file->write(data.data(), 8 << 10, 0).ok());
}

TEST_CASE("a read that gives other bytes than its write took is data loss") {
  const TempFolder folder;
  TierThread tier = thread_in(folder);
  std::vector<char> data = numbered(3 << 20, 'a');
  Transfer moved = transfer(Transfer::Kind::write, data, 0);
  tier.start(moved);
  REQUIRE(tier.finish(moved) == Transfer::State::done);
  REQUIRE(cox::test::change_tier_file(folder.path()));
  moved.kind = Transfer::Kind::read;
  tier.start(moved);
  CHECK(tier.finish(moved) == Transfer::State::failed);
  CHECK(moved.error.code() == StatusCode::data_loss);
  CHECK(moved.error.message().find(folder.path().string()) != std::string::npos);
}

TEST_CASE("reading beyond the end is data loss") {
  const TempFolder folder;
  cox::Result<TierFile> file = TierFile::create(folder.path());
  REQUIRE(file.ok());
  std::vector<char> data = numbered(100, 'a');
  REQUIRE(file->write(data.data(), 60, 0).ok());
  CHECK(file->read(data.data(), 100, 0).code() == StatusCode::data_loss);
}

TEST_CASE("many transfers bring every byte back, waited for in any order") {
  const TempFolder folder;
  TierThread tier = thread_in(folder);
  std::vector<std::vector<char>> data;
  std::vector<Transfer> writes(20);
  for (std::size_t i = 0; i < writes.size(); ++i) {
    data.push_back(numbered(i * 400000 + 1, static_cast<char>('a' + i)));
  }
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    writes[i] = transfer(Transfer::Kind::write, data[i], offset);
    offset += writes[i].bytes;
    tier.start(writes[i]);
  }
  for (std::size_t i = writes.size(); i-- > 0;) {
    CHECK(tier.finish(writes[i]) == Transfer::State::done);
  }
  std::vector<std::vector<char>> back;
  std::vector<Transfer> reads(writes.size());
  for (const std::vector<char>& bytes : data) back.emplace_back(bytes.size());
  for (std::size_t i = 0; i < reads.size(); ++i) {
    reads[i] = transfer(Transfer::Kind::read, back[i], writes[i].offset);
    reads[i].hash = writes[i].hash;
    tier.start(reads[i]);
  }
  for (Transfer& read : reads) CHECK(tier.finish(read) == Transfer::State::done);
  CHECK(back == data);
}

TEST_CASE("a cancelled transfer leaves its memory to its owner, whether it had begun or not") {
  const TempFolder folder;
  TierThread tier = thread_in(folder);
  for (int round = 0; round < 20; ++round) {
    std::vector<char> first = numbered(9 << 20, 'a');
    std::vector<char> second = numbered(1000, 'b');
    Transfer running = transfer(Transfer::Kind::write, first, 0);
    Transfer queued = transfer(Transfer::Kind::write, second, 10 << 20);
    tier.start(running);
    tier.start(queued);
    if (round % 2 == 0) tier.cancel(queued);
    tier.cancel(running);
    CHECK(running.state == Transfer::State::idle);
    tier.cancel(queued);
    CHECK(tier.finish(queued) == Transfer::State::idle);
  }
}

TEST_CASE("a failed write says why, and later ones are tried") {
  const TempFolder folder;
  TierThread tier = thread_in(folder);
  std::vector<char> data = numbered(64 << 10, 'a');
  std::vector<char> small = numbered(100, 'a');
  const FileSizeLimit limit(16 << 10);
  Transfer large = transfer(Transfer::Kind::write, data, 0);
  tier.start(large);
  CHECK(tier.finish(large) == Transfer::State::failed);
  CHECK(large.error.code() == StatusCode::resource_exhausted);
  Transfer fits = transfer(Transfer::Kind::write, small, 0);
  tier.start(fits);
  CHECK(tier.finish(fits) == Transfer::State::done);
}

TEST_CASE("the speed of a folder is positive both ways, and a missing one is an error") {
  const TempFolder folder;
  const auto speed = cox::detail::measure_tier(folder.path(), 1 << 20);
  REQUIRE(speed.ok());
  CHECK(*speed > 0);
  CHECK(folder.files() == 0);
  CHECK_FALSE(cox::detail::measure_tier(folder / "missing", 1 << 20).ok());
}
