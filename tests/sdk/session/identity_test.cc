#include "sdk/src/session/identity.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace cox::detail {
namespace {

Identity rank_of(const std::string& program, const std::string& build = "ab12") {
  Identity identity;
  program.copy(identity.program.data(), identity.program.size() - 1);
  build.copy(identity.build.data(), identity.build.size() - 1);
  return identity;
}

TEST_SUITE_BEGIN("identity");

TEST_CASE("this program has a name and the build of its linker") {
  const Identity mine = own_identity(OtherPrograms::refuse, {"--heads", "2"});
  CHECK(std::string(mine.program.data()).find("tests") != std::string::npos);
  CHECK(std::strlen(mine.build.data()) >= 16);
  CHECK(compare({mine, mine, mine}).status.ok());
  CHECK(compare({mine, mine}).warnings.empty());
}

TEST_CASE("another protocol is refused, even where other programs may take part") {
  Identity root = rank_of("train");
  Identity other = root;
  root.others = other.others = OtherPrograms::allow;
  other.protocol = kSdkProtocol + 1;
  const Compared compared = compare({root, root, other});
  CHECK(compared.status.code() == StatusCode::failed_precondition);
  CHECK(compared.status.message().find("on rank 2") != std::string::npos);
}

TEST_CASE("another program is refused by name unless all ranks allow it") {
  std::vector<Identity> ranks = {rank_of("train"), rank_of("evaluate")};
  const Status refused = compare(ranks).status;
  CHECK(refused.code() == StatusCode::failed_precondition);
  CHECK(refused.message().find("found train on rank 0 and evaluate on rank 1") !=
        std::string::npos);
  ranks[0].others = OtherPrograms::allow;
  CHECK_FALSE(compare(ranks).status.ok());
  ranks[1].others = OtherPrograms::allow;
  CHECK(compare(ranks).status.ok());
}

TEST_CASE("another build is one warning") {
  const Compared compared =
      compare({rank_of("train"), rank_of("train", "cd34"), rank_of("train", "ef56")});
  CHECK(compared.status.ok());
  REQUIRE(compared.warnings.size() == 1);
  CHECK(compared.warnings[0].find("rank 1 runs another build of train") == 0);
}

TEST_CASE("other arguments are one warning, however they are divided into words") {
  const std::vector<std::vector<std::string>> given = {
      {"--heads", "2"}, {"--heads", "4"}, {"--heads2"}, {"--heads", "2", ""}, {}};
  const Identity root = own_identity(OtherPrograms::refuse, given[0]);
  for (std::size_t i = 1; i < given.size(); ++i) {
    const Identity other = own_identity(OtherPrograms::refuse, given[i]);
    const Compared compared = compare({root, root, other, other});
    CHECK(compared.status.ok());
    REQUIRE(compared.warnings.size() == 1);
    CHECK(compared.warnings[0].find("rank 2 has different arguments from rank 0") == 0);
  }
}

TEST_CASE("bytes that are no identity are refused, and never read beyond") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    Identity other;
    auto* bytes = reinterpret_cast<unsigned char*>(&other);
    for (std::size_t i = 0; i < sizeof other; ++i) bytes[i] = static_cast<unsigned char>(random());
    if (trial % 2 == 0) other.magic = Identity::kMagic;
    if (trial % 4 == 0) other.protocol = kSdkProtocol;
    const Compared compared = compare({rank_of("train"), other});
    REQUIRE_FALSE(compared.status.ok());
    REQUIRE(compared.status.message().size() < 1000);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::detail
