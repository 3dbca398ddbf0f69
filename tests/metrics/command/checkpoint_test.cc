// `cox checkpoint`, run as users run it, also beside a job that writes and removes saves.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <thread>

#include "coordinator/io/content_hash.h"
#include "coordinator/io/safetensors_header.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/io/training_position.h"
#include "tests/metrics/command/outcome.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;
using test::Outcome;

Outcome checkpoint(const std::string& command, const fs::path& path) {
  return test::run_cox("checkpoint " + command + " '" + path.string() + "'");
}

std::string model_of(std::uint64_t step, std::uint64_t says_step) {
  const std::string data(1 << 16, static_cast<char>(step));
  const std::string json = io::format_safetensors_header(
      {.entries = {{.name = "w",
                    .dtype = "U8",
                    .shape = {static_cast<std::int64_t>(data.size())},
                    .begin = 0,
                    .end = data.size()}},
       .metadata = io::describe({.step = says_step, .cursor = says_step})});
  std::string length(sizeof(std::uint64_t), '\0');
  const std::uint64_t bytes = json.size();
  std::memcpy(length.data(), &bytes, sizeof bytes);
  return length + json + data;
}

// Returns a file with one tensor of two elements.
std::string file_of(const char* dtype, const std::string& data) {
  const std::string json = io::format_safetensors_header(
      {.entries = {{.name = "w", .dtype = dtype, .shape = {2}, .begin = 0, .end = data.size()}},
       .metadata = {}});
  std::string length(sizeof(std::uint64_t), '\0');
  const std::uint64_t bytes = json.size();
  std::memcpy(length.data(), &bytes, sizeof bytes);
  return length + json + data;
}

template <class Number>
std::string bytes_of(Number first, Number second) {
  const Number both[] = {first, second};
  std::string bytes(sizeof both, '\0');
  std::memcpy(bytes.data(), both, sizeof both);
  return bytes;
}

// Returns a file of tensors of bytes.
std::string file_of_tensors(const std::map<std::string, std::uint64_t>& bytes_of_tensor) {
  io::SafetensorsHeader header;
  std::string data;
  for (const auto& [name, bytes] : bytes_of_tensor) {
    header.entries.push_back({.name = name,
                              .dtype = "U8",
                              .shape = {static_cast<std::int64_t>(bytes)},
                              .begin = data.size(),
                              .end = data.size() + bytes});
    data.append(bytes, name.front());
  }
  const std::string json = io::format_safetensors_header(header);
  std::string length(sizeof(std::uint64_t), '\0');
  const std::uint64_t bytes = json.size();
  std::memcpy(length.data(), &bytes, sizeof bytes);
  return length + json + data;
}

// Runs `cox checkpoint COMMAND FROM TO [MORE]`.
Outcome run(const std::string& command, const fs::path& from, const fs::path& to,
            const std::string& more = "") {
  return test::run_cox("checkpoint " + command + " '" + from.string() + "' '" + to.string() + "' " +
                       more);
}

Outcome diff(const fs::path& before, const fs::path& after) {
  return test::run_cox("checkpoint diff '" + before.string() + "' '" + after.string() + "'");
}

// Makes a save without a manifest, like those of version 0.2.
fs::path make_unsealed(const TempFolder& folder, std::uint64_t step, std::uint64_t says_step) {
  const fs::path save = folder / io::save_name(step);
  fs::create_directory(save);
  folder.write(io::save_name(step) + "/model.safetensors", model_of(step, says_step));
  return save;
}

// Writes a save as a job does: in whole under another name, then renamed.
void make_save(const TempFolder& folder, std::uint64_t step) {
  const std::string work = ".writing-" + std::to_string(step);
  fs::create_directory(folder / work);
  const std::string model = model_of(step, step);
  folder.write(work + "/model.safetensors", model);
  io::SaveManifest manifest{
      .id = io::save_id(1, step), .step = step, .world_size = 1, .writer = "a job"};
  manifest.files = {{"model.safetensors", model.size(), io::content_hash(model)}};
  const std::size_t data = std::size_t{1} << 16;
  manifest.pieces = {{"w",
                      "U8",
                      {static_cast<std::int64_t>(data)},
                      0,
                      data,
                      "model.safetensors",
                      model.size() - data,
                      data,
                      io::content_hash(std::string_view(model).substr(model.size() - data))}};
  folder.write(work + "/manifest.json", io::to_json(manifest));
  fs::rename(folder / work, folder / io::save_name(step));
}

// Removes a save as a job does: first from the list, then its files.
void remove_save(const TempFolder& folder, std::uint64_t step) {
  const fs::path going = folder / (".removing-" + std::to_string(step));
  fs::rename(folder / io::save_name(step), going);
  fs::remove_all(going);
}

TEST_SUITE("command.checkpoint") {
  TEST_CASE("saves that a job removes while they are read are not called damaged") {
    const TempFolder folder;
    constexpr std::uint64_t kKept = 40;
    for (std::uint64_t step = 1; step <= kKept; ++step) make_save(folder, step);
    std::atomic<bool> is_over = false;
    std::thread job([&] {
      for (std::uint64_t step = kKept + 1; !is_over; ++step) {
        make_save(folder, step);
        remove_save(folder, step - kKept);
      }
    });
    for (int i = 0; i < 20; ++i) {
      for (const char* command : {"verify", "ls"}) {
        const Outcome outcome = checkpoint(command, folder.path());
        CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
        CHECK_MESSAGE(outcome.says("step-"), outcome.output);
      }
    }
    is_over = true;
    job.join();
  }

  TEST_CASE("a save that is not there is said to be, and one that is damaged is called so") {
    const TempFolder folder;
    const Outcome none = checkpoint("verify", folder / io::save_name(7));
    CHECK(none.exit_code == 2);
    CHECK_FALSE(none.says("damaged"));
    make_save(folder, 7);
    CHECK(checkpoint("verify", folder.path()).exit_code == 0);
    folder.write(io::save_name(7) + "/model.safetensors", model_of(8, 7));
    const Outcome damaged = checkpoint("verify", folder.path());
    CHECK(damaged.exit_code == 1);
    CHECK(damaged.says("step-000000000007: damaged"));
  }

  TEST_CASE("what is sealed can be verified") {
    const TempFolder folder;
    const fs::path save = make_unsealed(folder, 7, 7);
    CHECK(checkpoint("seal", save).exit_code == 0);
    CHECK(checkpoint("verify", folder.path()).exit_code == 0);
  }

  TEST_CASE("what differs between two saves is named with how much of it and by how much") {
    struct Row {
      const char* dtype;
      std::string before, after;  // bytes of two elements
      const char* says;
    };
    const Row rows[] = {
        {"F32", bytes_of(1.0F, 2.0F), bytes_of(1.0F, 2.5F),
         "1 of 2 elements differ, by at most 0.5\n"},
        {"F64", bytes_of(1.0, 2.0), bytes_of(3.0, 2.0), "by at most 2\n"},
        {"F16", bytes_of<std::uint16_t>(0x3C00, 0), bytes_of<std::uint16_t>(0x4000, 0),
         "at most 1\n"},
        {"BF16", bytes_of<std::uint16_t>(0x3F80, 0), bytes_of<std::uint16_t>(0x4000, 0),
         "at most 1\n"},
        {"F16", bytes_of<std::uint16_t>(0x3C00, 0), bytes_of<std::uint16_t>(0x7C00, 0),
         "at most inf\n"},
        {"F32", bytes_of(1.0F, 2.0F), bytes_of(std::numeric_limits<float>::quiet_NaN(), 2.0F),
         "1 of 2 elements differ, by at most 0, 1 of them not a number"},
        {"I64", bytes_of<std::int64_t>(5, -5), bytes_of<std::int64_t>(5, 7), "by at most 12\n"},
        {"F8_E4M3", bytes_of<std::uint8_t>(1, 2), bytes_of<std::uint8_t>(2, 2),
         "1 of 2 elements differ\n"},
    };
    for (const Row& row : rows) {
      CAPTURE(row.dtype);
      const TempFolder folder;
      folder.write("a", file_of(row.dtype, row.before));
      folder.write("b", file_of(row.dtype, row.after));
      const Outcome outcome = diff(folder / "a", folder / "b");
      CHECK(outcome.exit_code == 1);
      CHECK_MESSAGE(outcome.says(row.says), outcome.output);
      CHECK(outcome.says("0 tensors are equal, 1 are not"));
      CHECK(diff(folder / "a", folder / "a").exit_code == 0);
    }
  }

  TEST_CASE("tensors of two saves are compared by file and name, type and shape") {
    const TempFolder folder;
    make_save(folder, 7);
    make_save(folder, 8);
    const Outcome outcome = diff(folder / io::save_name(7), folder / io::save_name(8));
    CHECK(outcome.exit_code == 1);
    CHECK_MESSAGE(outcome.says("model.safetensors: w  U8[65536]: 65536 of 65536 elements differ, "
                               "by at most 1"),
                  outcome.output);
    folder.write("f", file_of("F32", bytes_of(1.0F, 2.0F)));
    folder.write("h", file_of("I32", bytes_of(1, 2)));
    CHECK(diff(folder / "f", folder / "h").says("w  F32[2] and I32[2]"));
    const Outcome alone = diff(folder / io::save_name(7), folder / "f");
    CHECK(alone.says("only in"));
    CHECK(diff(folder / "none", folder / "f").exit_code == 2);
  }

  TEST_CASE("a file that is split is equal to itself when the files are merged") {
    const TempFolder folder;
    folder.write("model.safetensors", file_of_tensors({{"a", 900}, {"b", 40}, {"c", 500}}));
    for (const int files : {1, 2, 3, 5}) {
      CAPTURE(files);
      const fs::path split = folder / ("split" + std::to_string(files));
      const fs::path merged = folder / ("merged" + std::to_string(files));
      CHECK(run("split", folder / "model.safetensors", split, std::to_string(files)).exit_code ==
            0);
      CHECK(fs::exists(split / "model.safetensors.index.json"));
      CHECK(run("merge", split, merged).exit_code == 0);
      CHECK(diff(folder / "model.safetensors", merged / "model.safetensors").exit_code == 0);
    }
    CHECK(fs::exists(folder / "split3/model-00002-of-00003.safetensors"));
    const std::string index = read_bytes(folder / "split2/model.safetensors.index.json");
    CHECK(index.find("\"total_size\":1440") != std::string::npos);
    CHECK(index.find("\"a\":\"model-00001-of-00002.safetensors\"") != std::string::npos);
    CHECK(index.find("\"c\":\"model-00002-of-00002.safetensors\"") != std::string::npos);
  }

  TEST_CASE("the model of a save merges into one file, and nothing is written over") {
    const TempFolder folder;
    fs::create_directory(folder / "save");
    folder.write("save/model-00001-of-00002.safetensors", file_of_tensors({{"a", 9}}));
    folder.write("save/model-00002-of-00002.safetensors", file_of_tensors({{"b", 4}}));
    folder.write("save/parts.safetensors", file_of_tensors({{"average/a", 9}}));
    CHECK(run("merge", folder / "save", folder / "whole.safetensors").says("2 tensors"));
    CHECK(run("merge", folder / "save", folder / "whole.safetensors").exit_code == 2);
    folder.write("save/model-00002-of-00002.safetensors", file_of_tensors({{"a", 4}}));
    const Outcome twice = run("merge", folder / "save", folder / "other.safetensors");
    CHECK_MESSAGE(twice.says("expected tensors that no other file has, found \"a\""), twice.output);
    CHECK(run("split", folder / "none", folder / "to", "2").exit_code == 2);
    CHECK(run("split", folder / "save/parts.safetensors", folder / "to", "0").exit_code == 2);
  }

  TEST_CASE("what could not be read back is not sealed") {
    const TempFolder folder;
    const std::uint64_t beyond = (std::uint64_t{1} << 53) + 1;
    const fs::path far = make_unsealed(folder, beyond, beyond);
    const fs::path older = make_unsealed(folder, 200, 100);
    const fs::path named = make_unsealed(folder, 300, 300);
    folder.write(io::save_name(300) + "/notes\xff", "x");
    for (const fs::path& save : {far, older, named}) {
      const Outcome outcome = checkpoint("seal", save);
      CHECK_MESSAGE(outcome.exit_code == 2, outcome.output);
      CHECK(outcome.lines() == 1);
      CHECK_FALSE(fs::exists(save / "manifest.json"));
    }
    CHECK(
        checkpoint("seal", older).says("expected tensors of step 200, found tensors of step 100"));
  }
}

}  // namespace
}  // namespace cox
