// Runs the corpora of the fuzz targets, and small changes of their files, through the functions
// that libFuzzer calls. Needs no clang. With COX_TEST_CORPUS=DIR, first writes the seeds to DIR.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/seeds.h"
#include "tests/fuzz/targets.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr int kChanges = 500;  // for each file

std::vector<std::string> corpus_of(const Target& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(COX_FUZZ_CORPUS) / target.name))
    files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<std::string> contents;
  for (const fs::path& file : files) contents.push_back(test::read_file(file));
  return contents;
}

// Returns the bytes with a few of them flipped, cut off, left out or doubled.
std::string changed(std::string bytes, std::mt19937& random) {
  for (auto edits = 1 + random() % 4; edits > 0 && !bytes.empty(); --edits) {
    const std::size_t at = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
        break;
      case 2:
        bytes.erase(at, 1 + random() % 8);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, 1 + random() % 16));
        break;
      default:
        if (random() % 4 == 0) bytes.resize(at);
    }
  }
  return bytes;
}

void write_seeds(const Target& target, const fs::path& folder) {
  const std::vector<std::string> seeds = seeds_of(target.name);
  fs::create_directories(folder / target.name);
  for (std::size_t i = 0; i < seeds.size(); ++i)
    test::write_file(folder / target.name / ("seed" + std::to_string(i)), seeds[i]);
}

TEST_SUITE("fuzz.corpus") {
  TEST_CASE("every target decodes its corpus and small changes of it without a find") {
    const char* folder = std::getenv("COX_TEST_CORPUS");
    for (const Target& target : targets()) {
      CAPTURE(target.name);
      if (folder != nullptr) write_seeds(target, folder);
      const std::vector<std::string> corpus = corpus_of(target);
      CHECK_MESSAGE(!corpus.empty(), "expected files in the corpus of " << target.name);
      std::mt19937 random(2026);
      for (const std::string& bytes : corpus) {
        static_cast<void>(target.run(bytes));
        for (int i = 0; i < kChanges; ++i) static_cast<void>(target.run(changed(bytes, random)));
      }
    }
  }

  TEST_CASE(
      "every decoder takes what we write, and a file of its corpus: no format left it behind") {
    for (const Target& target : targets()) {
      CAPTURE(target.name);
      const auto is_taken = [&](const std::string& bytes) {
        return target.run(bytes) == Taken::yes;
      };
      CHECK(std::ranges::any_of(seeds_of(target.name), is_taken));
      CHECK_MESSAGE(std::ranges::any_of(corpus_of(target), is_taken),
                    "expected a file that is of today's format; write the seeds again: "
                    "scripts/fuzz --seeds");
    }
  }

  TEST_CASE("no bytes at all are harmless") {
    for (const Target& target : targets()) static_cast<void>(target.run({}));
  }
}

}  // namespace
}  // namespace cox::fuzz
