#include "tests/wire/proto_file.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "coordinator/core/proto_schema.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

const std::string kFolder = COX_SOURCE_DIR "/coordinator/wire/";

std::string committed(const std::string& name) {
  std::ifstream file(kFolder + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void check_file(const std::string& name, const std::string& expected) {
  if (std::getenv("COX_WRITE_PROTO") != nullptr) std::ofstream(kFolder + name) << expected;
  CHECK_MESSAGE(committed(name) == expected,
                name << ": write it again with COX_WRITE_PROTO=1 in the environment of this test");
}

struct OneWay {
  std::uint32_t number = 0;
  static auto fields(auto& self) { return message("Same", field(1, "number", self.number)); }
};

struct OtherWay {
  std::uint64_t number = 0;
  static auto fields(auto& self) { return message("Same", field(1, "number", self.number)); }
};

TEST_SUITE("wire.proto_file") {
  TEST_CASE("control.proto and states.proto are what the lists of fields say") {
    const test::ProtoFiles files = test::proto_files();
    check_file("control.proto", files.control);
    check_file("states.proto", files.states);
  }

  TEST_CASE("a name that stands for two messages is found") {
    ProtoSchema schema;
    schema.add<OneWay>();
    schema.add<OneWay>();
    CHECK(schema.conflicts().empty());
    schema.add<OtherWay>();
    CHECK(schema.conflicts() == std::vector<std::string>{"Same"});
  }
}

}  // namespace
}  // namespace cox
