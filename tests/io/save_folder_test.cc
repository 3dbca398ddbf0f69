#include "coordinator/io/save_folder.h"

#include <filesystem>
#include <string>

#include "coordinator/io/content_hash.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

namespace fs = std::filesystem;
using namespace cox;
using namespace cox::io;

SaveManifest small_manifest() {
  SaveManifest manifest;
  manifest.id = save_id(0x1234, 0xffffffffffffffff);
  manifest.step = 120;
  manifest.incarnation = 3;
  manifest.world_size = 2;
  manifest.writer = "run \"demo\" on host node-a, process 4711";
  manifest.written = UnixTime{1790000000.25};
  manifest.files = {{"model.safetensors", 5, content_hash("hello")}};
  manifest.pieces = {{"w", "F32", {1}, 0, 1, "model.safetensors", 1, 4, content_hash("ello")}};
  return manifest;
}

// A whole save of step 120.
fs::path write_save(const TempFolder& folder, const SaveManifest& manifest = small_manifest()) {
  const fs::path save = folder / save_name(120);
  fs::create_directory(save);
  folder.write(save_name(120) + "/model.safetensors", "hello");
  folder.write(save_name(120) + "/manifest.json", to_json(manifest));
  return save;
}

TEST_SUITE("io.save_folder") {
  TEST_CASE("a content hash is XXH3 with 64 bits, in pieces or at once") {
    CHECK(to_hex(content_hash("")) == "2d06800538d394c2");  // XXH3_64bits of nothing, seed 0
    ContentHash pieces;
    for (const char c : std::string("hello")) pieces.add(std::as_bytes(std::span(&c, 1)));
    CHECK(pieces.value() == content_hash("hello"));
    CHECK(content_hash("hello") != content_hash("hellp"));
    CHECK(*hash_from_hex(to_hex(42)) == 42);
    for (const char* wrong :
         {"", "2a", "000000000000002A", "000000000000002g", "00000000000000000"})
      CHECK_FALSE(hash_from_hex(wrong).ok());
  }

  TEST_CASE("a manifest comes back as it was written") {
    const SaveManifest wrote = small_manifest();
    const auto read = parse_manifest(to_json(wrote));
    REQUIRE(read.ok());
    CHECK(to_json(*read) == to_json(wrote));
    CHECK(read->id == "0000000000001234ffffffffffffffff");
    CHECK(read->writer == wrote.writer);
    CHECK(read->pieces.at(0).hash == wrote.pieces.at(0).hash);
  }

  TEST_CASE("no changed or cut byte of a manifest goes unnoticed") {
    const std::string text = to_json(small_manifest());
    for (std::size_t i = 0; i < text.size(); ++i) {
      for (const int bit : {0, 3, 7}) {
        std::string damaged = text;
        damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
        CHECK_FALSE(parse_manifest(damaged).ok());
      }
      CHECK_FALSE(parse_manifest(text.substr(0, i)).ok());
    }
  }

  TEST_CASE("a manifest that ends where its hash should begin is refused, and not read beyond") {
    for (const char* text : {",\n  \"hash\": \"\n}\n", "{,\n  \"hash\": \"\n}\n", "\"\n}\n", ""}) {
      const Status status = parse_manifest(text).status();
      CHECK(status.code() == StatusCode::data_loss);
      CHECK(status.message().find("expected a hash of itself at its end") != std::string::npos);
    }
  }

  TEST_CASE("a manifest that says what cannot be is refused although its hash is right") {
    const auto refused = [](auto change) {
      SaveManifest manifest = small_manifest();
      change(manifest);
      const auto read = parse_manifest(to_json(manifest));
      return read.status().code() == StatusCode::data_loss;
    };
    CHECK(refused([](SaveManifest& m) { m.files[0].name = "../model.safetensors"; }));
    CHECK(refused([](SaveManifest& m) { m.files[0].name = ".."; }));
    CHECK(refused([](SaveManifest& m) { m.files.clear(); }));
    CHECK(refused([](SaveManifest& m) { m.files.push_back(m.files[0]); }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].file = "other"; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].bytes = 5; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].offset = ~0ull >> 12; }));
  }

  TEST_CASE("a manifest of as many tensors as a safetensors file may have comes back") {
    constexpr std::size_t kTensors = std::size_t{1} << 18;
    SaveManifest wrote = small_manifest();
    wrote.files[0].bytes = kTensors * 8;
    const SavePiece piece = wrote.pieces[0];
    wrote.pieces.clear();
    for (std::size_t t = 0; t < kTensors; ++t) {
      wrote.pieces.push_back(piece);
      wrote.pieces.back().tensor = "layers." + std::to_string(t) + ".weight";
      wrote.pieces.back().offset = 8 * t;
    }
    const auto read = parse_manifest(to_json(wrote));
    REQUIRE_MESSAGE(read.ok(), read.status().text());
    REQUIRE(read->pieces.size() == kTensors);
    CHECK(read->pieces.back().tensor == "layers.262143.weight");
    CHECK(read->pieces.back().offset == 8 * (kTensors - 1));
    CHECK(read->pieces.back().shape == piece.shape);
  }

  TEST_CASE("saves are found by their names, oldest step first") {
    const TempFolder folder;
    for (const char* name : {"step-000000000020", "step-000000000003", "step-best",
                             "step-000000000030.damaged", ".writing-a-step-000000000040", "step-7"})
      fs::create_directory(folder / name);
    const auto saves = saves_in(folder.path());
    REQUIRE(saves.size() == 2);
    CHECK(step_of_save(saves[0]) == 3);
    CHECK(step_of_save(saves[1]) == 20);
    CHECK(saves_in(folder / "none").empty());
  }

  TEST_CASE("a save is whole when each file is there with its bytes") {
    const TempFolder folder;
    const fs::path save = write_save(folder);
    CHECK(verify_save(save, VerifyDepth::pieces).ok());
    const auto damage = [&](const std::string& file, std::string_view bytes) {
      folder.write(save_name(120) + "/" + file, bytes);
      const Status status = verify_save(save, VerifyDepth::files).status();
      CHECK(status.code() == StatusCode::data_loss);
      CHECK(status.message().find(file) != std::string::npos);
      write_save(folder);
    };
    damage("model.safetensors", "hellp");
    damage("model.safetensors", "hell");
    damage("model.safetensors", "hello!");
    damage("manifest.json", "{}");
    fs::remove(save / "model.safetensors");
    CHECK(verify_save(save, VerifyDepth::files).status().code() == StatusCode::data_loss);
  }

  TEST_CASE("a save without a manifest, renamed, or whose files are none, is refused in one line") {
    const TempFolder folder;
    const fs::path save = write_save(folder);
    fs::rename(save, folder / save_name(121));
    CHECK(verify_save(folder / save_name(121), VerifyDepth::files)
              .status()
              .message()
              .find("renamed") != std::string::npos);
    fs::rename(folder / save_name(121), save);
    fs::remove(save / "model.safetensors");
    fs::create_symlink("/dev/zero", save / "model.safetensors");
    CHECK(verify_save(save, VerifyDepth::files).status().code() == StatusCode::failed_precondition);
    fs::remove(save / "manifest.json");
    const Status none = verify_save(save, VerifyDepth::files).status();
    CHECK(none.code() == StatusCode::data_loss);
    CHECK(none.message().find("version 0.2 or earlier") != std::string::npos);
  }

  TEST_CASE("a piece with the wrong hash is found when pieces are looked at") {
    const TempFolder folder;
    SaveManifest manifest = small_manifest();
    manifest.pieces[0].hash ^= 1;
    const fs::path save = write_save(folder, manifest);
    CHECK(verify_save(save, VerifyDepth::files).ok());
    CHECK(verify_save(save, VerifyDepth::pieces).status().message().find("\"w\"") !=
          std::string::npos);
  }
}

}  // namespace
