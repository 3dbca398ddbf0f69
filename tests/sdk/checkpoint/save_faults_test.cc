// A save at one to four ranks with one failing call, each call in turn.
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "coordinator/io/file.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/testing/random.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/checkpoint/save_layout.h"
#include "tests/sdk/checkpoint/failing_calls.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

Checkpoint state_at(std::uint64_t step) {
  Checkpoint made;
  made.position.step = made.position.cursor = step;
  for (const char* name : {"a", "b", "c", "d"}) {
    const at::Tensor values = torch::full({64}, static_cast<double>(step));
    made.model.push_back({name, values});
    made.optimizer.push_back({std::string("exp_avg.") + name, values});
  }
  return made;
}

// Ranks of one job write their parts one after the other, as far as possible.
struct Ranks {
  Ranks(const std::filesystem::path& directory, std::size_t count) {
    for (std::size_t r = 0; r < count; ++r) {
      folders.push_back(*CheckpointFolder::open(directory));
      SaveWriter writer{"rank", [] { return UnixTime{1}; },
                        [random = testing::Random(5)]() mutable { return random.bits(); }};
      if (r > 0) {
        folders[r].join(std::move(writer));
      } else {
        REQUIRE(folders[0].claim(std::move(writer)).ok());
      }
    }
  }

  Status save(std::uint64_t step) {
    const Checkpoint state = state_at(step);
    const std::vector<std::uint32_t> paces(folders.size(), 1);
    const SaveLayout layout = lay_out(state, {}, paces);
    Status outcome;
    SaveTicket ticket;
    for (std::size_t r = 0; r < folders.size(); ++r) {
      ticket = folders[r].draw(step);
      const Status written = folders[r].write_part(ticket, {.rank = r,
                                                            .ranks = folders.size(),
                                                            .incarnation = 0,
                                                            .files = part_of(state, {}, layout, r),
                                                            .control = r == 0 ? "control" : ""});
      if (outcome.ok()) outcome = written;
    }
    if (outcome.ok())
      return folders[0].publish(ticket, {folders.size(), places_of(state, layout)}, 9);
    folders[0].give_up(ticket);
    return outcome;
  }

  std::vector<CheckpointFolder> folders;
};

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

// Returns whether the call of this number was made, and so failed.
bool check_failing_call(std::size_t ranks, int number) {
  CAPTURE(ranks);
  CAPTURE(number);
  const TempFolder temp;
  Ranks job(temp.path(), ranks);
  REQUIRE(job.save(1).ok());
  Status saved;
  int calls = 0;
  {
    const sdk_test::FailingCall failing(number);
    saved = job.save(2);
    calls = sdk_test::FailingCall::calls_made();
  }
  const auto before = CheckpointFolder::read(job.folders[0].save_of(1));
  REQUIRE(before.ok());
  CHECK(before->model.size() == 4);
  // A failure after the last rename leaves the new save, which is whole.
  std::set<std::string> expected{"saves.lock", "step-000000000001"};
  const bool is_there = io::is_there(job.folders[0].save_of(2));
  if (is_there) {
    expected.insert("step-000000000002");
    CHECK(CheckpointFolder::read(job.folders[0].save_of(2)).ok());
  }
  CHECK(names_in(temp.path()) == expected);
  CHECK((saved.ok() || number <= calls));
  CHECK((is_there || !saved.ok()));
  CHECK(job.save(3).ok());
  return number <= calls;
}

}  // namespace

TEST_SUITE("saves in which a call fails") {
  TEST_CASE("leave the save before whole, and a new one that is whole or not there") {
    for (const std::size_t ranks : {1, 2, 3, 4}) {
      int failed = 0;
      while (check_failing_call(ranks, failed + 1)) ++failed;
      CHECK(failed > 40);
      MESSAGE(ranks, " ranks: ", failed, " calls failed in turn");
    }
  }
}
