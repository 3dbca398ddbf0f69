// The pages name the versions of files and frames that the code writes.
#include <fstream>
#include <sstream>
#include <string>

#include "coordinator/runtime/journal_reader.h"
#include "coordinator/runtime/saved_state.h"
#include "coordinator/wire/frame.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

// Returns the part of a page below a heading, up to the next one.
std::string section(const std::string& name, const std::string& heading) {
  std::ifstream file(std::string(COX_SOURCE_DIR "/docs/") + name);
  std::ostringstream page;
  page << file.rdbuf();
  const std::string text = page.str();
  const std::size_t begin = text.find("\n" + heading + "\n");
  REQUIRE_MESSAGE(begin != std::string::npos, heading);
  return text.substr(begin, text.find("\n## ", begin + 1) - begin);
}

// Returns the little-endian number in the four bytes behind a magic of eight.
std::string version_in(const std::string& file) {
  REQUIRE(file.size() >= 12);
  unsigned version = 0;
  for (std::size_t i = 0; i < 4; ++i)
    version |= static_cast<unsigned>(static_cast<unsigned char>(file[8 + i])) << (8 * i);
  return std::to_string(version);
}

bool names(const std::string& text, const std::string& row) {
  return text.find("\n| " + row + " |\n") != std::string::npos;
}

TEST_SUITE("docs.versions") {
  TEST_CASE("the page of the journal has the versions of both of its files") {
    const std::string journal = version_in(runtime::journal_header());
    CHECK(names(section("journal.md", "## File"), "8 | 4 | version of the file, " + journal));
    const std::string state = version_in(*runtime::control_state_file(ControlState()));
    CHECK(names(section("journal.md", "## Saved control state"),
                "8 | 4 | version of the file, " + state));
  }

  TEST_CASE("the page of the wire format has the version of masks") {
    CHECK(names(section("wire-format.md", "## Frames"),
                "0 | 1 | version | " + std::to_string(unsigned{wire::kMaskVersion})));
  }
}

}  // namespace
}  // namespace cox
