// Saves of commit 764e50d9 (manifest version 1, with torch's optimizer states as archives). Each
// was made after three steps of the loop in old_saves.h; expected.safetensors is from two steps
// later, by the same commit.
#include "old_saves.h"

#include <filesystem>
#include <string>

#include "coxswain/safetensors.h"
#include "sdk/src/training/training_state.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

TEST_SUITE("saves of earlier versions") {
  TEST_CASE("go on as the version that made them did, bit for bit") {
    for (const old_saves::Kind& kind : old_saves::kinds()) {
      CAPTURE(std::string(kind.name));
      const TempFolder folder;
      const std::filesystem::path recorded = std::filesystem::path(OLD_SAVES) / kind.name;
      std::filesystem::copy(recorded, folder.path(),
                            std::filesystem::copy_options::recursive |
                                std::filesystem::copy_options::overwrite_existing);
      auto session = solo_session(
          {"--cox.checkpoint.directory=" + folder.path().string(), "--cox.checkpoint.resume=on"});
      old_saves::Net net;
      old_saves::train(session, net, kind, 5);
      session.finish();
      const auto expected = read_safetensors(recorded / "expected.safetensors");
      REQUIRE(expected.ok());
      for (const NamedTensor& found : cox::detail::model_tensors(*net)) {
        for (const NamedTensor& wanted : expected->tensors) {
          if (wanted.name == found.name) CHECK(sdk_test::same_bits(wanted.tensor, found.tensor));
        }
      }
    }
  }
}
