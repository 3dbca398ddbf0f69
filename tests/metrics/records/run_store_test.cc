#include "metrics/records/run_store.h"

#include <malloc.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "metrics/records/operator_table_file.h"
#include "run_fixture.h"
#include "tests/metrics/text_search.h"
#include "tests/support/ended_by.h"
#include "tests/support/no_memory.h"
#include "tests/support/no_threads.h"
#include "tests/support/small_files_only.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

RunInfo info(std::string name = "demo") {
  RunInfo run;
  run.name = std::move(name);
  run.world_size = 2;
  run.started = 1000;
  return run;
}

StepRow row(std::uint64_t step) {
  StepRow r;
  r.step = StepId(step);
  r.round = RoundId(step);
  r.timestamp = 1000 + static_cast<double>(step);
  r.loss = 2;
  return r;
}

void write_steps(const std::filesystem::path& directory, std::uint64_t from, std::uint64_t to,
                 RunStoreOptions options = {}) {
  auto store = RunStoreWriter::open(directory, info(), std::move(options));
  REQUIRE(store.ok());
  for (std::uint64_t step = from; step < to; ++step) (*store)->push(row(step));
  CHECK((*store)->close().ok());
  CHECK((*store)->dropped() == 0);
}

RunStoreOptions append_from(std::uint64_t step) {
  RunStoreOptions options;
  options.on_existing = OnExisting::append;
  options.resume_step = StepId(step);
  return options;
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("every pushed row becomes one line, in order, and run.json counts them") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 500);
    const auto lines = lines_of(folder.path() / "rank0" / "steps.jsonl");
    REQUIRE(lines.size() == 500);
    for (std::size_t i = 0; i < lines.size(); ++i)
      CHECK(lines[i].starts_with("{\"step\":" + std::to_string(i) + ","));
    CHECK(contains(read_text(folder.path() / "rank0" / "run.json"), "\"n_steps\":500"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "rank0" / "run.json.new"));
  }

  TEST_CASE("the newest table of operators is in the rank's folder, and of no earlier run") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "rank0" / "operators.json";
    OperatorTable table;
    table.steps = 1;
    table.rows = {{"aten::mm", "h.0", 1, 2, 3}};
    auto store = RunStoreWriter::open(folder.path(), info());
    REQUIRE(store.ok());
    CHECK_FALSE(std::filesystem::exists(file));
    (*store)->keep(std::make_shared<const OperatorTable>(table));
    (*store)->flush();
    CHECK(io::read_operator_table(read_text(file)).value() == table);
    table.steps = 2;
    (*store)->keep(std::make_shared<const OperatorTable>(table));
    CHECK((*store)->close().ok());
    CHECK(io::read_operator_table(read_text(file)).value() == table);
    RunStoreOptions options;
    options.on_existing = OnExisting::replace;
    CHECK(RunStoreWriter::open(folder.path(), info(), std::move(options)).ok());
    CHECK_FALSE(std::filesystem::exists(file));
  }

  TEST_CASE("buckets stand in the line of their round, also where rows between were dropped") {
    const TemporaryFolder folder;
    RunStoreOptions options;
    options.ring_rows = 16;
    options.flush_seconds = 3600;
    auto store = RunStoreWriter::open(folder.path(), info(), std::move(options));
    REQUIRE(store.ok());
    const auto push = [&](std::uint64_t step) {
      StepBuckets buckets;
      buckets.round = RoundId(step);
      buckets.add({1, static_cast<std::int64_t>(step), 0, 1}, 1);
      (*store)->push(row(step), step % StepBuckets::kEveryRounds == 0 ? &buckets : nullptr);
    };
    for (std::uint64_t step = 0; step < 40; ++step) push(step);  // no room from 16 on
    (*store)->flush();
    for (std::uint64_t step = 40; step < 50; ++step) push(step);
    CHECK((*store)->close().ok());
    std::vector<std::string> with;
    for (const std::string& line : lines_of(folder.path() / "rank0" / "steps.jsonl")) {
      const auto at = line.find("\"buckets\"");
      if (at != std::string::npos) with.push_back(line.substr(0, 10) + line.substr(at));
    }
    CHECK(with == std::vector<std::string>{"{\"step\":0,\"buckets\":[[1,0,0,1]]}",
                                           "{\"step\":9,\"buckets\":[[1,9,0,1]]}",
                                           "{\"step\":45\"buckets\":[[1,45,0,1]]}"});
  }

  TEST_CASE("a full ring drops rows and counts them, and what is written stays whole") {
    const TemporaryFolder folder;
    RunStoreOptions options;
    options.ring_rows = 8;
    options.flush_seconds = 3600;
    auto store = RunStoreWriter::open(folder.path(), info(), std::move(options));
    REQUIRE(store.ok());
    for (std::uint64_t step = 0; step < 20; ++step) (*store)->push(row(step));
    CHECK((*store)->dropped() == 12);
    CHECK((*store)->close().ok());
    CHECK(lines_of(folder.path() / "rank0" / "steps.jsonl").size() == 8);
    CHECK(contains(read_text(folder.path() / "rank0" / "run.json"), "\"dropped_rows\":12"));
  }

  TEST_CASE("after a flush the rows pushed before are in the file, while the run goes on") {
    const TemporaryFolder folder;
    RunStoreOptions options;
    options.flush_seconds = 3600;
    auto store = RunStoreWriter::open(folder.path(), info(), std::move(options));
    REQUIRE(store.ok());
    for (std::uint64_t step = 0; step < 300; ++step) {
      (*store)->push(row(step));
      if (step % 100 != 99) continue;
      (*store)->flush();
      CHECK(lines_of(folder.path() / "rank0" / "steps.jsonl").size() == step + 1);
    }
    CHECK((*store)->close().ok());
    (*store)->flush();
    CHECK(lines_of(folder.path() / "rank0" / "steps.jsonl").size() == 300);
  }

  TEST_CASE("a folder that holds a run is refused, and stays as it was") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 3);
    const std::string before = read_text(folder.path() / "rank0" / "steps.jsonl");
    const auto again = RunStoreWriter::open(folder.path(), info());
    REQUIRE_FALSE(again.ok());
    CHECK(again.status().code() == StatusCode::failed_precondition);
    CHECK(contains(again.status().message(), "already holds run \"demo\" with 3 steps"));
    CHECK(read_text(folder.path() / "rank0" / "steps.jsonl") == before);
  }

  TEST_CASE("replace starts anew") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 5);
    RunStoreOptions options;
    options.on_existing = OnExisting::replace;
    write_steps(folder.path(), 0, 2, std::move(options));
    CHECK(lines_of(folder.path() / "rank0" / "steps.jsonl").size() == 2);
  }

  TEST_CASE("a resumed run goes on behind the step it resumes from, torn lines and lost work cut") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 10);
    const auto steps = folder.path() / "rank0" / "steps.jsonl";
    write_text(steps, read_text(steps) + "{\"step\":10,\"times");
    write_steps(folder.path(), 7, 12, append_from(7));
    const auto lines = lines_of(steps);
    REQUIRE(lines.size() == 12);
    for (std::size_t i = 0; i < lines.size(); ++i)
      CHECK(lines[i].starts_with("{\"step\":" + std::to_string(i) + ","));
    const std::string run = read_text(folder.path() / "rank0" / "run.json");
    CHECK(contains(run, "\"n_steps\":12"));
    CHECK(contains(run, "\"started\":1000"));
  }

  TEST_CASE("a run that goes on removes what its killed ranks were about to write") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 3);
    const auto ours = folder.path() / "rank0" / ".run.json.tmp-21947-0";
    const auto roots = folder.path() / ".memory_profile.json.tmp-5-0";
    for (const auto& file : {ours, roots}) write_text(file, "{");
    write_steps(folder.path(), 3, 5, append_from(3));
    for (const auto& file : {ours, roots}) CHECK_FALSE(std::filesystem::exists(file));
  }

  TEST_CASE("another run's folder is not appended to") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 3);
    const auto other = RunStoreWriter::open(folder.path(), info("else"), append_from(3));
    REQUIRE_FALSE(other.ok());
    CHECK(contains(other.status().message(), "belongs to run \"demo\", expected \"else\""));
  }

  TEST_CASE("a run of any name goes on in its own folder") {
    for (const char* name : {"gpt2 \"small\"", "a\\b", "tab\there", "caf\xc3\xa9", "\xff"}) {
      CAPTURE(name);
      const TemporaryFolder folder;
      REQUIRE(RunStoreWriter::open(folder.path(), info(name), {}).ok());
      CHECK(RunStoreWriter::open(folder.path(), info(name), append_from(0)).ok());
      CHECK_FALSE(RunStoreWriter::open(folder.path(), info("else"), append_from(0)).ok());
    }
  }

  TEST_CASE("a resume leaves a backup that shares the files' bytes as it was") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 20);
    const auto file = folder.path() / "rank0" / "steps.jsonl";
    const auto run = folder.path() / "rank0" / "run.json";
    const auto backup = folder.path() / "backup";
    std::filesystem::create_directory(backup);
    std::filesystem::create_hard_link(file, backup / "steps.jsonl");
    std::filesystem::create_hard_link(run, backup / "run.json");
    const std::string steps = read_text(file);
    const std::string facts = read_text(run);
    write_steps(folder.path(), 10, 15, append_from(10));
    CHECK(read_text(backup / "steps.jsonl") == steps);
    CHECK(read_text(backup / "run.json") == facts);
    CHECK(lines_of(file).size() == 15);
    CHECK(lines_of(file)[14].starts_with("{\"step\":14,"));
  }

  TEST_CASE("a backup made while the run writes keeps the rows that it had") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "rank0" / "steps.jsonl";
    auto store = RunStoreWriter::open(folder.path(), info());
    REQUIRE(store.ok());
    (*store)->push(row(0));
    (*store)->flush();
    std::filesystem::create_hard_link(file, folder.path() / "backup");
    (*store)->push(row(1));
    CHECK((*store)->close().ok());
    CHECK(lines_of(folder.path() / "backup").size() == 1);
    CHECK(lines_of(file).size() == 2);
  }

  TEST_CASE("a run directory that is removed, or replaced by another's, is said to be, and left") {
    for (const bool is_replaced : {false, true}) {
      CAPTURE(is_replaced);
      const TemporaryFolder folder;
      const auto directory = folder.path() / "run";
      std::vector<std::string> told;
      RunStoreOptions options;
      options.on_trouble = [&](const Status& trouble) { told.push_back(trouble.message()); };
      options.flush_seconds = 3600;  // the thread acts only on request
      auto store = RunStoreWriter::open(directory, info(), std::move(options));
      REQUIRE(store.ok());
      std::filesystem::remove_all(directory);
      if (is_replaced) std::filesystem::create_directories(directory / "rank0");
      (*store)->push(row(0));
      (*store)->flush();
      CHECK_FALSE((*store)->close().ok());
      REQUIRE(told.size() == 1);
      CHECK(contains(told[0], directory.string()));
      CHECK(
          contains(told[0], is_replaced ? "another folder" : "the folder was removed or renamed"));
      CHECK((*store)->dropped() == 1);
      CHECK(std::filesystem::exists(directory) == is_replaced);
      if (is_replaced) CHECK(std::filesystem::is_empty(directory / "rank0"));
    }
  }

  TEST_CASE("rows whose file was removed are counted as lost, and the loss is told") {
    const TemporaryFolder folder;
    const auto file = folder.path() / "rank0" / "steps.jsonl";
    auto store = RunStoreWriter::open(folder.path(), info());
    REQUIRE(store.ok());
    std::filesystem::remove(file);
    (*store)->push(row(0));
    (*store)->flush();
    CHECK((*store)->dropped() == 1);
    CHECK(contains((*store)->close().message(), "steps.jsonl: the file was removed"));
  }

  TEST_CASE("appending to nothing starts a run") {
    const TemporaryFolder folder;
    write_steps(folder.path(), 0, 3, append_from(0));
    CHECK(lines_of(folder.path() / "rank0" / "steps.jsonl").size() == 3);
  }

  TEST_CASE("a directory that cannot be is refused with the path and what to do") {
    const TemporaryFolder folder;
    write_text(folder.path() / "file", "x");
    const auto store = RunStoreWriter::open(folder.path() / "file" / "run", info());
    REQUIRE_FALSE(store.ok());
    CHECK(store.status().code() == StatusCode::failed_precondition);
    CHECK(contains(store.status().message(), "rank0"));
    CHECK(contains(store.status().message(), "COX_RUN_DIRECTORY"));
  }

  TEST_CASE("a full disk costs rows, is told once, leaves whole lines, and stops nothing") {
    const TemporaryFolder folder;
    RunStoreOptions options;
    options.flush_seconds = 0.001;
    int told = 0;
    Status first;
    options.on_trouble = [&](const Status& status) {
      ++told;
      first = status;
    };
    auto store = RunStoreWriter::open(folder.path(), info(), std::move(options));
    REQUIRE(store.ok());
    {
      const SmallFilesOnly full(4000);
      for (std::uint64_t step = 0; step < 200; ++step) {
        (*store)->push(row(step));
        if (step % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
      CHECK((*store)->close().code() == StatusCode::resource_exhausted);
    }
    CHECK(told == 1);
    CHECK(contains(first.message(), "steps.jsonl"));
    const auto lines = lines_of(folder.path() / "rank0" / "steps.jsonl");
    CHECK(lines.size() + (*store)->dropped() == 200);
    CHECK((*store)->dropped() > 100);
    for (const std::string& line : lines) CHECK(line.back() == '}');
  }

  TEST_CASE("without a thread rows wait for flush() and close(), which is told once") {
    const TemporaryFolder folder;
    int told = 0;
    RunStoreOptions options;
    options.on_trouble = [&](const Status&) { ++told; };
    const auto store = [&] {
      const test::NoThreads none;
      return RunStoreWriter::open(folder.path(), info(), std::move(options));
    }();
    REQUIRE(store.ok());
    CHECK(told == 1);
    const auto lines = [&] { return lines_of(folder.path() / "rank0" / "steps.jsonl").size(); };
    for (std::uint64_t step = 0; step < 100; ++step) (*store)->push(row(step));
    (*store)->flush();
    CHECK(lines() == 100);
    for (std::uint64_t step = 100; step < 150; ++step) (*store)->push(row(step));
    const Status closed = (*store)->close();
    CHECK(closed.code() == StatusCode::resource_exhausted);
    CHECK(contains(closed.message(), "run directory: its thread could not be started: "));
    CHECK(lines() == 150);
    CHECK((*store)->dropped() == 0);
    CHECK(told == 1);
  }

#ifndef __SANITIZE_ADDRESS__
  TEST_CASE("a writer without memory costs rows that are counted, and never the process") {
    const TemporaryFolder folder;
    CHECK(ended_by([&] {
            ::mallopt(M_ARENA_MAX, 1);  // threads share the exhausted memory below
            RunStoreOptions options;
            options.flush_seconds = 3600;
            auto store = RunStoreWriter::open(folder.path(), info(), std::move(options));
            if (!store.ok()) ::_exit(1);
            for (std::uint64_t step = 0; step < 1000; ++step) (*store)->push(row(step));
            {
              const NoMemory none;
              (*store)->flush();
            }
            const bool lost_rows = (*store)->dropped() > 0;
            static_cast<void>((*store)->close());
            const auto lines = lines_of(folder.path() / "rank0" / "steps.jsonl").size();
            if (!lost_rows || lines + (*store)->dropped() != 1000) ::raise(SIGKILL);
          }) == 0);
  }
#endif

  TEST_CASE("rows pushed on a training thread while the writer works all arrive") {
    const TemporaryFolder folder;
    RunStoreOptions options;
    options.flush_seconds = 0.0005;
    options.ring_rows = 64;
    auto store = RunStoreWriter::open(folder.path(), info(), std::move(options));
    REQUIRE(store.ok());
    std::thread trainer([&] {
      for (std::uint64_t step = 0; step < 3000; ++step) {
        (*store)->push(row(step));
        if (step % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    trainer.join();
    CHECK((*store)->close().ok());
    const std::size_t lines = lines_of(folder.path() / "rank0" / "steps.jsonl").size();
    CHECK(lines + (*store)->dropped() == 3000);
    CHECK(lines > 500);
  }
}
