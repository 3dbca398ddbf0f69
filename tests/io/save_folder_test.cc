#include "coordinator/io/save_folder.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/core/units.h"
#include "coordinator/io/content_hash.h"
#include "coordinator/io/safetensors_header.h"
#include "coordinator/io/training_position.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace {

namespace fs = std::filesystem;
using namespace cox;
using namespace cox::io;

// Returns a file of tensors with the bytes "ello", the data of one tensor of the shape.
std::string tensors(std::uint64_t step = 120, std::vector<std::int64_t> shape = {1}) {
  const std::string json = format_safetensors_header(
      {.entries = {{.name = "w", .dtype = "F32", .shape = std::move(shape), .begin = 0, .end = 4}},
       .metadata = describe_step(step)});
  std::string file(sizeof(std::uint64_t), '\0');
  const std::uint64_t length = json.size();
  std::memcpy(file.data(), &length, sizeof length);
  return file + json + "ello";
}

SaveManifest manifest_of(const std::string& model) {
  SaveManifest manifest;
  manifest.id = save_id(0x1234, 0xffffffffffffffff);
  manifest.step = 120;
  manifest.incarnation = 3;
  manifest.world_size = 2;
  manifest.writer = "run \"demo\" on host node-a, process 4711";
  manifest.written = UnixTime{1790000000.25};
  manifest.files = {{"model.safetensors", model.size(), content_hash(model)}};
  manifest.pieces = {
      {"w", "F32", {1}, 0, 1, "model.safetensors", model.size() - 4, 4, content_hash("ello")}};
  return manifest;
}

SaveManifest small_manifest() {
  return manifest_of(tensors());
}

// A save of step 120.
fs::path write_save(const TempFolder& folder, const SaveManifest& manifest = small_manifest(),
                    const std::string& model = tensors()) {
  const fs::path save = folder / save_name(120);
  fs::create_directory(save);
  folder.write(save_name(120) + "/model.safetensors", model);
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
    CHECK(to_hex(42) == "000000000000002a");
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
      CHECK(status.message().find("expected the manifest to end with its hash") !=
            std::string::npos);
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
    CHECK(refused([](SaveManifest& m) { m.step = (1ull << 53) + 2; }));
    CHECK(refused([](SaveManifest& m) { m.world_size = kMaxRanks + 1; }));
    CHECK(refused([](SaveManifest& m) { m.world_size = -1; }));
    CHECK(refused([](SaveManifest& m) { m.files.push_back({"huge", 1ull << 53, 0}); }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].bytes = 3; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].dtype = "F31"; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].count = 2; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].first = 1; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].first = 1ull << 53; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].shape = {1ll << 40, 1ll << 40}; }));
    CHECK(refused([](SaveManifest& m) { m.pieces[0].shape = {0}; }));
    CHECK(refused([](SaveManifest& m) { m.pieces.push_back(m.pieces[0]); }));
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

  TEST_CASE("files of several ranks have the name of one rank's in common") {
    CHECK(io::whole_name("model-00001-of-00002.safetensors") == "model.safetensors");
    CHECK(io::whole_name("my-model-00012-of-00099.safetensors") == "my-model.safetensors");
    for (const std::string same :
         {"model.safetensors", "model-0001-of-0002.safetensors", "-00001-of-00002.safetensors",
          "model-00001-of-00002.json", "model-0000x-of-00002.safetensors", ""})
      CHECK(io::whole_name(same) == same);
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
    std::string other = tensors();
    other.back() = 'p';
    damage("model.safetensors", other);
    damage("model.safetensors", tensors().substr(0, tensors().size() - 1));
    damage("model.safetensors", tensors() + "!");
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

  TEST_CASE("a file of tensors is of the save's step, and has the tensors that are listed") {
    const TempFolder folder;
    const auto complaint = [&](const std::string& model, const SaveManifest& manifest) {
      return verify_save(write_save(folder, manifest, model), VerifyDepth::files).status();
    };
    const std::string older = tensors(100);
    CHECK(complaint(older, manifest_of(older)).code() == StatusCode::data_loss);
    CHECK(complaint(older, manifest_of(older)).message().find("found tensors of step 100") !=
          std::string::npos);
    const std::string scalar = tensors(120, {});
    CHECK(complaint(scalar, manifest_of(scalar)).message().find("tensors that the manifest") !=
          std::string::npos);
    SaveManifest unlisted = small_manifest();
    unlisted.pieces.clear();
    CHECK(complaint(tensors(), unlisted).code() == StatusCode::data_loss);
    CHECK(complaint(tensors(), small_manifest()).ok());
  }

  TEST_CASE("a manifest is only written where it can be read again") {
    const TempFolder folder;
    const fs::path save = write_save(folder);
    SaveManifest manifest = small_manifest();
    manifest.step = (1ull << 53) + 2;
    const std::string before = read_bytes(save / "manifest.json");
    CHECK(write_manifest(save, manifest).code() == StatusCode::data_loss);
    CHECK(read_bytes(save / "manifest.json") == before);
    SaveManifest described{.id = save_id(1, 2), .writer = "a person"};
    REQUIRE(describe_files(save, described).ok());
    REQUIRE(write_manifest(save, described).ok());
    CHECK(verify_save(save, VerifyDepth::pieces).ok());
    folder.write(save_name(120) + "/bad\xff", "x");
    CHECK(describe_files(save, described).message().find("UTF-8") != std::string::npos);
  }

  TEST_CASE("a save that is removed or replaced while it is read is not called damaged") {
    const TempFolder folder;
    CHECK(verify_listed_save(folder / save_name(120), VerifyDepth::files).status().code() ==
          StatusCode::not_found);
    write_save(folder);
    folder.write(save_name(120) + "/model.safetensors", "damaged");
    CHECK(verify_listed_save(folder / save_name(120), VerifyDepth::files).status().code() ==
          StatusCode::data_loss);
    write_save(folder);
    std::atomic<bool> is_over = false;
    std::thread job([&] {
      for (std::uint64_t id = 0; id < 300; ++id) {
        const TempFolder fresh;
        std::string model = tensors();
        model.back() = static_cast<char>(id);
        SaveManifest manifest = manifest_of(model);
        manifest.id = save_id(1, id);
        manifest.pieces[0].hash = content_hash(std::string_view(model).substr(model.size() - 4));
        const fs::path made = write_save(fresh, manifest, model);
        fs::remove_all(folder / "old");
        std::error_code ignored;
        fs::rename(folder / save_name(120), folder / "old", ignored);
        fs::rename(made, folder / save_name(120));
      }
      is_over = true;
    });
    int damaged = 0;
    while (!is_over) {
      const auto seen = verify_listed_save(folder / save_name(120), VerifyDepth::pieces);
      if (seen.status().code() == StatusCode::data_loss) ++damaged;
    }
    job.join();
    CHECK(damaged == 0);
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
