#include <sys/stat.h>

#include "metrics/records/run_store.h"
#include "run_fixture.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

std::string lines(std::uint64_t from, std::uint64_t to) {
  std::string text;
  for (std::uint64_t step = from; step < to; ++step)
    text += "{\"step\":" + std::to_string(step) + ",\"timestamp\":1.5}\n";
  return text;
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a torn tail is cut wherever it was torn") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "steps.jsonl";
    const std::string whole = lines(0, 4);
    const std::string more = lines(4, 5);
    for (std::size_t torn = 0; torn < more.size(); ++torn) {
      write_text(file, whole + more.substr(0, torn));
      const auto left = trim_steps(file, std::nullopt);
      REQUIRE(left.ok());
      CHECK(*left == 4);
      CHECK(read_text(file) == whole);
    }
  }

  TEST_CASE("rows from the resume step on are cut, and only at the end") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "steps.jsonl";
    // A rollback within the run: steps 3 and 4 ran twice.
    const std::string kept = lines(0, 5) + lines(3, 5);
    write_text(file, kept + lines(5, 9));
    const auto left = trim_steps(file, StepId(5));
    REQUIRE(left.ok());
    CHECK(*left == 7);
    CHECK(read_text(file) == kept);
  }

  TEST_CASE("long records are cut at the same places as short ones") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "steps.jsonl";
    const std::string whole = lines(0, 20000);
    REQUIRE(whole.size() > 4 << 16);
    for (const int resume : {0, 3, 15000, 19990, 19999, 20000}) {
      write_text(file, whole + "{\"step\":20000" + std::string(200000, ' '));  // torn
      const auto left = trim_steps(file, StepId(static_cast<std::uint64_t>(resume)));
      REQUIRE(left.ok());
      CHECK(*left == static_cast<std::uint64_t>(resume));
      CHECK((read_text(file) == lines(0, resume)));
      CHECK(look_at_run(folder.path())->value().steps == static_cast<std::uint64_t>(resume));
    }
  }

  TEST_CASE("resuming from step 0 keeps nothing, an absent file is empty") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "steps.jsonl";
    CHECK(*trim_steps(file, StepId(0)) == 0);
    write_text(file, lines(0, 3));
    CHECK(*trim_steps(file, StepId(0)) == 0);
    CHECK(read_text(file).empty());
  }

  TEST_CASE("an existing run is recognised, also with a torn run.json") {
    const TemporaryFolder folder;
    CHECK_FALSE(look_at_run(folder.path())->has_value());
    write_text(folder.path() / "steps.jsonl", lines(0, 3));
    write_text(folder.path() / "run.json",
               "{\"name\":\"demo\",\"config\":{},\"started\":17.5,\"wall_ti");
    const auto run = look_at_run(folder.path());
    REQUIRE(run.ok());
    REQUIRE(run->has_value());
    CHECK((*run)->name == "demo");
    CHECK((*run)->started == 17.5);
    CHECK((*run)->wall_time == 0);
    CHECK((*run)->steps == 3);
  }

  TEST_CASE("a pipe, a device, a folder or a link in the place of a run's file is refused") {
    const char* const kFiles[] = {"run.json", "steps.jsonl"};
    for (const std::string name : kFiles) {
      CAPTURE(name);
      const TemporaryFolder folder;
      const auto file = folder.path() / "rank0" / name;
      std::filesystem::create_directories(file.parent_path());
      const auto check_refused = [&](std::string_view found) {
        const Status looked = look_at_run(file.parent_path()).status();
        CHECK(looked.code() == StatusCode::failed_precondition);
        CHECK(looked.message().ends_with(found));
        RunInfo info;
        info.name = "demo";
        RunStoreOptions options;
        options.on_existing = OnExisting::append;
        CHECK_FALSE(RunStoreWriter::open(folder.path(), info, options).ok());
        std::filesystem::remove_all(file);
      };
      REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
      check_refused("found a pipe");
      std::filesystem::create_directory(file);
      check_refused("found a folder");
      std::filesystem::create_symlink("/dev/zero", file);
      check_refused("found a link");
      const auto other = folder.path() / "precious";
      write_text(other, lines(0, 3));
      std::filesystem::create_symlink(other, file);
      check_refused("found a link");
      CHECK(read_text(other) == lines(0, 3));
    }
  }

  TEST_CASE("rows are not written through a link or into a pipe") {
    const TemporaryFolder folder;
    std::filesystem::create_symlink(folder.path() / "elsewhere", folder.path() / "link");
    CHECK_FALSE(AppendFile::open(folder.path() / "link").ok());
    CHECK_FALSE(std::filesystem::exists(folder.path() / "elsewhere"));
    REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
    CHECK_FALSE(AppendFile::open(folder.path() / "pipe").ok());
    CHECK_FALSE(AppendFile::open("/dev/null").ok());
  }

  TEST_CASE("a file without lines is no record of steps, however large it is") {
    const TemporaryFolder folder;
    write_text(folder.path() / "steps.jsonl", "");
    std::filesystem::resize_file(folder.path() / "steps.jsonl", std::uintmax_t{1} << 40);
    const Status status = look_at_run(folder.path()).status();
    CHECK(status.code() == StatusCode::data_loss);
    CHECK(status.message().find("expected one line for each step") != std::string::npos);
  }
}
