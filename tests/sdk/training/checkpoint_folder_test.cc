#include "sdk/src/checkpoint/checkpoint_folder.h"

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/io/content_hash.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/runtime/saved_state.h"
#include "coordinator/testing/random.h"
#include "coxswain/adamw.h"
#include "small_training.h"
#include "tests/sdk/temp_folder.h"
#include "tests/support/small_files_only.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

Checkpoint checkpoint_at(std::uint64_t step, std::int64_t numbers = 5) {
  Checkpoint made;
  made.position = {step, step * 8, 7, 4096, 0, 1, 2, {}};
  made.model = {{"w", torch::full({numbers}, static_cast<double>(step), at::kFloat)}};
  made.optimizer = {{"m", torch::full({3}, 0.5)}};
  return made;
}

SaveWriter writer(const std::string& name, std::uint64_t seed = 1) {
  return {name, [] { return UnixTime{1}; },
          [random = testing::Random(seed)]() mutable { return random.bits(); }};
}

// Opens a folder for writing.
CheckpointFolder open(const std::filesystem::path& directory, std::uint64_t seed = 1) {
  auto opened = CheckpointFolder::open(directory);
  REQUIRE(opened.ok());
  REQUIRE(opened->claim(writer("test " + std::to_string(seed), seed)).ok());
  return std::move(*opened);
}

// Writes a save of one rank.
Status write(CheckpointFolder& folder, const Checkpoint& state, const std::string& control,
             std::uint32_t keep) {
  const std::uint32_t alone[] = {1};
  const SaveTicket ticket = folder.draw(state.position.step);
  const SaveLayout layout = lay_out(state, {}, alone);
  const Status written = folder.write_part(ticket, {.rank = 0,
                                                    .ranks = 1,
                                                    .incarnation = 0,
                                                    .files = part_of(state, {}, layout, 0),
                                                    .control = control});
  if (written.ok()) return folder.publish(ticket, {1, places_of(state, layout)}, keep);
  folder.give_up(ticket);
  return written;
}

std::string file_of(const ControlState& state) {
  auto file = runtime::control_state_file(state);
  REQUIRE(file.ok());
  return *file;
}

std::size_t saves(const TempFolder& temp) {
  return io::saves_in(temp.path()).size();
}

// Returns all files of a save by name.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& save) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(save)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

void put(const std::filesystem::path& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

const auto quiet = [](const std::string&) {};
const auto look = [](const std::filesystem::path& save) {
  return CheckpointFolder::read(save).status();
};

std::string newest_name(const CheckpointFolder& folder) {
  const auto newest = folder.newest();
  return newest ? newest->filename().string() : "none";
}

}  // namespace

TEST_SUITE("checkpoint folder") {
  TEST_CASE("what is written is read again") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp / "saves");
    CHECK_FALSE(folder.newest().has_value());
    REQUIRE(write(folder, checkpoint_at(12), {}, 2).ok());
    CHECK(newest_name(folder) == "step-000000000012");
    const auto read = CheckpointFolder::read(*folder.newest());
    REQUIRE(read.ok());
    CHECK(read->position.step == 12);
    CHECK(read->position.cursor == 96);
    CHECK(read->position.seed == 7);
    CHECK(read->position.samples == 4096);
    CHECK(read->position.skipped == 1);
    CHECK(read->position.rollbacks == 2);
    REQUIRE(read->model.size() == 1);
    CHECK(torch::equal(read->model[0].tensor, checkpoint_at(12).model[0].tensor));
    CHECK(read->optimizer[0].name == "m");
  }

  TEST_CASE("a loss scaler is kept to the bit, and a damaged one is refused by name") {
    const TempFolder folder;
    auto saves = open(folder.path());
    Checkpoint made = checkpoint_at(3);
    made.position.scaler = ScalerState{0.1f * 65536, 41, 2, 3.7f, 1e-30f, 5};
    REQUIRE(write(saves, made, {}, 2).ok());
    const auto read = CheckpointFolder::read(*saves.newest());
    REQUIRE(read.ok());
    REQUIRE(read->position.scaler.has_value());
    CHECK((*read->position.scaler == *made.position.scaler));

    made.position.scaler->scale = std::numeric_limits<float>::infinity();
    REQUIRE(write(saves, made, {}, 2).ok());
    const auto damaged = CheckpointFolder::read(*saves.newest());
    CHECK_FALSE(damaged.ok());
    CHECK(damaged.status().message().find("loss scale") != std::string::npos);
  }

  TEST_CASE("control state is optional and comes back equal") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(write(folder, checkpoint_at(1), {}, 2).ok());
    CHECK(CheckpointFolder::read_control(*folder.newest()).status().code() ==
          StatusCode::not_found);
    JobFacts job;
    job.world_size = 2;
    ControlState state;
    state.plan = initial_plan(job);
    state.plan.id.number = 4;
    REQUIRE(write(folder, checkpoint_at(2), file_of(state), 2).ok());
    const auto read = CheckpointFolder::read_control(*folder.newest());
    REQUIRE(read.ok());
    CHECK(read->plan.id.number == 4);
  }

  TEST_CASE("ranks that open the same folder at the same time all may") {
    const TempFolder temp;
    std::atomic<int> refused{0};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&] {
        for (int i = 0; i < 300; ++i) {
          if (!CheckpointFolder::open(temp.path() / "saves").ok()) ++refused;
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    CHECK(refused == 0);
    CHECK(std::filesystem::is_empty(temp.path() / "saves"));
  }

  TEST_CASE("only the newest ones are kept") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    for (const std::uint64_t step : {5, 10, 15}) {
      REQUIRE(write(folder, checkpoint_at(step), {}, 2).ok());
    }
    CHECK(saves(temp) == 2);
    CHECK(newest_name(folder) == "step-000000000015");
    REQUIRE(write(folder, checkpoint_at(20), {}, 1).ok());
    CHECK(saves(temp) == 1);
  }

  TEST_CASE("a save of an earlier step replaces those that a rollback gave up") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    for (const std::uint64_t step : {10, 20, 30}) {
      REQUIRE(write(folder, checkpoint_at(step), {}, 3).ok());
    }
    REQUIRE(write(folder, checkpoint_at(15), {}, 3).ok());
    CHECK(newest_name(folder) == "step-000000000015");
    CHECK(saves(temp) == 2);
  }

  TEST_CASE("folders of other names are somebody's own: never resumed from, never removed") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    const std::string own[] = {"step-best", "step-000000000010-good", "step-000000000099.old",
                               "step-5", "step-"};
    for (const std::string& name : own) std::filesystem::create_directory(temp / name);
    CHECK(newest_name(folder) == "none");
    for (const std::uint64_t step : {10, 20, 30}) {
      REQUIRE(write(folder, checkpoint_at(step), {}, 1).ok());
    }
    CHECK(newest_name(folder) == "step-000000000030");
    for (const std::string& name : own) CHECK(std::filesystem::exists(temp / name));
    CHECK_FALSE(std::filesystem::exists(temp / "step-000000000020"));
  }

  TEST_CASE("a step can be saved again") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(write(folder, checkpoint_at(10, 5), {}, 1).ok());
    REQUIRE(write(folder, checkpoint_at(10, 9), {}, 1).ok());
    CHECK(CheckpointFolder::read(*folder.newest())->model[0].tensor.numel() == 9);
    CHECK(saves(temp) == 1);
  }

  TEST_CASE(
      "what a crash left half written or half removed is no save, and goes with the next job") {
    const TempFolder temp;
    for (const char* left :
         {".writing-0000abcd-step-000000000020", ".removing-0000abcd-step-000000000010"}) {
      std::filesystem::create_directory(temp / left);
      temp.write(std::string(left) + "/model.safetensors", "half");
    }
    CheckpointFolder folder = open(temp.path());
    CHECK(newest_name(folder) == "none");
    REQUIRE(write(folder, checkpoint_at(20), {}, 2).ok());
    CHECK(temp.files() == 2);  // the save and the lock
    CHECK(CheckpointFolder::read(*folder.newest())->position.step == 20);
  }

  TEST_CASE("damaged saves are errors that name the file") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    const auto damage = [&](const std::string& name, const std::string& bytes) {
      REQUIRE(write(folder, checkpoint_at(10), {}, 2).ok());
      temp.write("step-000000000010/" + name, bytes);
      const auto read = CheckpointFolder::read(*folder.newest());
      REQUIRE_FALSE(read.ok());
      CHECK(read.status().message().find(name) != std::string::npos);
    };
    damage("model.safetensors", "");
    damage("optimizer.safetensors", "nonsense, but longer than a header");
    damage("model.safetensors", read_bytes(temp / "step-000000000010/optimizer.safetensors"));
    REQUIRE(write(folder, checkpoint_at(10), {}, 2).ok());
    std::filesystem::remove(temp / "step-000000000010/optimizer.safetensors");
    CHECK_FALSE(CheckpointFolder::read(*folder.newest()).ok());
  }

  TEST_CASE("a full disk leaves the earlier save and nothing half written") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(write(folder, checkpoint_at(10), {}, 1).ok());
    {
      const SmallFilesOnly full_disk(4096);
      const Status written = write(folder, checkpoint_at(20, 100000), {}, 1);
      CHECK(written.code() == StatusCode::resource_exhausted);
    }
    CHECK(temp.files() == 2);  // the save and the lock
    CHECK(CheckpointFolder::read(*folder.newest())->position.step == 10);
  }

  TEST_CASE("of 1,000 random damages none is loaded") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp / "saves");
    JobFacts job;
    ControlState state;
    state.plan = initial_plan(job);
    Checkpoint full = checkpoint_at(20, 300);
    full.reducer = {{"order", torch::arange(4)}};
    full.parts = {{"average/w", torch::ones({9})}};
    REQUIRE(write(folder, checkpoint_at(10, 300), file_of(state), 9).ok());
    REQUIRE(write(folder, full, file_of(state), 9).ok());
    const auto save = folder.save_of(20);
    REQUIRE(CheckpointFolder::read(save).ok());
    const auto files = files_of(save);
    REQUIRE(files.size() == 6);
    testing::Random random(17);
    int loaded = 0;
    for (int trial = 0; trial < 1000; ++trial) {
      const auto& file = files[random.bits() % files.size()];
      const std::string good = read_bytes(file);
      const auto older = folder.save_of(10) / file.filename();
      std::string bad = good;
      switch (random.bits() % 5) {
        case 0:
          bad[random.bits() % bad.size()] ^= static_cast<char>(1 << random.bits() % 8);
          break;
        case 1:
          bad.resize(random.bits() % bad.size());
          break;
        case 2:
          bad += static_cast<char>(random.bits());
          break;
        case 3:
          bad = read_bytes(files[random.bits() % files.size()]);
          break;
        default:
          bad = std::filesystem::exists(older) ? read_bytes(older) : std::string();
          break;
      }
      if (bad == good) continue;
      random.bits() % 7 == 0 ? static_cast<void>(std::filesystem::remove(file)) : put(file, bad);
      const auto read = CheckpointFolder::read(save);
      if (read.ok() || read.status().code() != StatusCode::data_loss) ++loaded;
      put(file, good);
    }
    CHECK(loaded == 0);
    CHECK(CheckpointFolder::read(save).ok());
  }

  TEST_CASE("a damaged newest save is kept by another name, and the one before is taken") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    for (const std::uint64_t step : {10, 20, 30})
      REQUIRE(write(folder, checkpoint_at(step), {}, 9).ok());
    put(folder.save_of(30) / "optimizer.safetensors", "nonsense");
    std::filesystem::remove(folder.save_of(20) / "manifest.json");
    CHECK(folder.newest_whole(CheckpointFolder::OnDamage::refuse, look, quiet).status().code() ==
          StatusCode::data_loss);
    CHECK(newest_name(folder) == "step-000000000030");
    std::string told;
    const auto found = folder.newest_whole(CheckpointFolder::OnDamage::set_aside, look,
                                           [&](const std::string& line) { told += line + "\n"; });
    REQUIRE(found.ok());
    CHECK(*found == folder.save_of(10));
    CHECK(told.find("step-000000000030.damaged") != std::string::npos);
    CHECK(told.find("optimizer.safetensors") != std::string::npos);
    CHECK(told.find("step-000000000020.damaged") != std::string::npos);
    folder.go_on_from(*found);
    REQUIRE(write(folder, checkpoint_at(20), {}, 1).ok());
    CHECK(saves(temp) == 1);
    CHECK(std::filesystem::exists(temp / "step-000000000030.damaged/model.safetensors"));
    put(folder.save_of(20) / "model.safetensors", "nonsense");
    const auto none = folder.newest_whole(CheckpointFolder::OnDamage::set_aside, look, quiet);
    CHECK(none.status().code() == StatusCode::data_loss);
    CHECK(saves(temp) == 1);  // the only save keeps its name
  }

  TEST_CASE("a save whose numbers cannot be is damaged, and the one before is taken") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    REQUIRE(write(folder, checkpoint_at(10), {}, 9).ok());
    Checkpoint endless = checkpoint_at(20);
    endless.position.cursor = ~std::uint64_t{4};
    REQUIRE(write(folder, endless, {}, 9).ok());
    std::string told;
    const auto found = folder.newest_whole(CheckpointFolder::OnDamage::set_aside, look,
                                           [&](const std::string& line) { told += line; });
    REQUIRE(found.ok());
    CHECK(*found == folder.save_of(10));
    CHECK(told.find("coxswain.cursor") != std::string::npos);
  }

  TEST_CASE("no file of another step's save is taken, also where the manifest was made for it") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp.path());
    Checkpoint full = checkpoint_at(10);
    full.reducer = {{"order", torch::arange(4)}};
    REQUIRE(write(folder, full, {}, 9).ok());
    full = checkpoint_at(20);
    full.reducer = {{"order", torch::arange(4)}};
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "reducer.safetensors"}) {
      CAPTURE(name);
      REQUIRE(write(folder, full, {}, 9).ok());
      const auto save = folder.save_of(20);
      io::SaveManifest manifest{.id = io::save_id(1, 2), .world_size = 1, .writer = "a person"};
      REQUIRE(io::describe_files(save, manifest).ok());
      put(save / name, read_bytes(folder.save_of(10) / name));
      const auto content = io::content_of(save / name);
      REQUIRE(content.ok());
      *std::ranges::find(manifest.files, name, &io::SaveFile::name) = {name, content->bytes,
                                                                       content->hash};
      std::erase_if(manifest.pieces, [&](const io::SavePiece& p) { return p.file == name; });
      const Status written = io::write_manifest(save, manifest);
      REQUIRE_MESSAGE(written.ok(), written.text());
      const Status read = CheckpointFolder::read(save).status();
      CHECK(read.code() == StatusCode::data_loss);
      CHECK(read.message().find("found tensors of step 10") != std::string::npos);
      CHECK_FALSE(io::describe_files(save, manifest).ok());
      std::filesystem::remove_all(save);
    }
  }

  TEST_CASE("a backup by hard links keeps its bytes when the run goes on") {
    const TempFolder temp;
    {
      CheckpointFolder first = open(temp / "saves", 1);
      REQUIRE(write(first, checkpoint_at(10), {}, 1).ok());
    }
    std::string before;
    std::vector<std::filesystem::path> backup;
    const auto link = [&](const std::filesystem::path& file) {
      backup.push_back(temp / ("backup" + std::to_string(backup.size())));
      std::filesystem::create_hard_link(file, backup.back());
      before += read_bytes(file);
    };
    for (const auto& file : files_of(temp / "saves/step-000000000010")) link(file);
    link(temp / "saves/saves.lock");
    CheckpointFolder folder = open(temp / "saves", 2);
    folder.go_on_from(folder.save_of(10));
    REQUIRE(write(folder, checkpoint_at(10, 9), {}, 1).ok());
    std::string after;
    for (const auto& file : backup) after += read_bytes(file);
    CHECK(after == before);
  }

  TEST_CASE("a folder of saves that was removed or renamed is said to be") {
    const TempFolder temp;
    CheckpointFolder folder = open(temp / "saves");
    REQUIRE(write(folder, checkpoint_at(10), {}, 2).ok());
    std::filesystem::rename(temp / "saves", temp / "elsewhere");
    const Status written = write(folder, checkpoint_at(20), {}, 2);
    CHECK(written.message().find("the folder was removed or renamed") != std::string::npos);
    CHECK(io::saves_in(temp / "elsewhere").size() == 1);
  }

  TEST_CASE("a second job on the folder is refused with who has it") {
    const TempFolder temp;
    const CheckpointFolder first = open(temp.path(), 1);
    auto second = CheckpointFolder::open(temp.path());
    REQUIRE(second.ok());
    const Status refused = second->claim(writer("run two", 2));
    CHECK(refused.code() == StatusCode::failed_precondition);
    CHECK(refused.message().find("test 1") != std::string::npos);
  }

  TEST_CASE("a rank whose job lost the folder to another writes nothing there") {
    const TempFolder temp;
    const CheckpointFolder root = open(temp.path(), 1);
    CheckpointFolder rank = *CheckpointFolder::open(temp.path());
    rank.join(writer("rank 1", 1));
    CHECK(rank.check_shared().ok());
    std::filesystem::remove(temp / "saves.lock");
    CHECK(write(rank, checkpoint_at(10), {}, 2).message().find("held by no job") !=
          std::string::npos);
    const CheckpointFolder other = open(temp.path(), 2);
    CHECK(write(rank, checkpoint_at(10), {}, 2).message().find("test 2") != std::string::npos);
    CHECK(saves(temp) == 0);
  }

  TEST_CASE("a job that wakes after another took its folder writes and removes nothing there") {
    const TempFolder temp;
    CheckpointFolder frozen = open(temp.path(), 1);
    REQUIRE(write(frozen, checkpoint_at(40), {}, 2).ok());
    std::filesystem::remove(temp / "saves.lock");
    CheckpointFolder other = open(temp.path(), 2);
    other.go_on_from(other.save_of(40));
    REQUIRE(write(other, checkpoint_at(380), {}, 2).ok());
    REQUIRE(write(other, checkpoint_at(400), {}, 2).ok());
    const Status woken = write(frozen, checkpoint_at(60), {}, 2);
    CHECK(woken.code() == StatusCode::failed_precondition);
    CHECK(woken.message().find("test 2") != std::string::npos);
    CHECK(saves(temp) == 2);
    CHECK(temp.files() == 3);
    CHECK(CheckpointFolder::read(other.save_of(400)).ok());
  }

  // The lock is removed by hand at a random moment of each job's life, so both jobs in turn believe
  // that they own the folder.
  TEST_CASE("in 200 random schedules of two jobs no save of the other is lost") {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      CAPTURE(seed);
      const TempFolder temp;
      testing::Random random(seed);
      std::optional<CheckpointFolder> jobs[2];
      std::uint64_t step[2] = {0, 0};
      std::set<std::string> newest[2];  // ids of each job's newest save
      for (int turn = 0; turn < 12; ++turn) {
        const std::size_t who = random.bits() % 2;
        if (!jobs[who] || random.bits() % 4 == 0) {
          jobs[who].reset();
          if (random.bits() % 2 == 0) std::filesystem::remove(temp / "saves.lock");
          auto opened = CheckpointFolder::open(temp.path());
          REQUIRE(opened.ok());
          if (!opened->claim(writer("job", random.bits())).ok()) continue;
          jobs[who].emplace(std::move(*opened));
          const auto found =
              jobs[who]->newest_whole(CheckpointFolder::OnDamage::refuse, look, quiet);
          if (found.ok()) {
            jobs[who]->go_on_from(*found);
            step[who] = *io::step_of_save(*found);
            newest[0].clear();  // the job may remove saves from before this one
            newest[1].clear();
          }
        }
        step[who] += 1 + random.bits() % 3;
        if (!write(*jobs[who], checkpoint_at(step[who]), {}, 1).ok()) continue;
        newest[who] = {io::read_manifest(jobs[who]->save_of(step[who]))->id};
        std::set<std::string> there;
        for (const auto& save : io::saves_in(temp.path())) {
          const auto whole = io::verify_save(save, io::VerifyDepth::files);
          REQUIRE(whole.ok());
          there.insert(whole->id);
        }
        for (const auto& ids : newest) {
          for (const std::string& id : ids) REQUIRE(there.contains(id));
        }
      }
    }
  }

  TEST_CASE("a rank that sees another folder than rank 0 is told that it must be shared") {
    const TempFolder temp;
    const CheckpointFolder root = open(temp / "saves", 1);
    CheckpointFolder rank = *CheckpointFolder::open(temp / "others");
    rank.join(writer("rank 1", 1));
    CHECK(rank.check_shared().message().find("must share it") != std::string::npos);
  }

  TEST_CASE("a directory that cannot be is an error that says what to set") {
    const TempFolder temp;
    temp.write("file", "x");
    const auto opened = CheckpointFolder::open(temp / "file/saves");
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.status().message().find("checkpoint.directory") != std::string::npos);
  }

  TEST_CASE("the fingerprint knows names, shapes and types, not values") {
    const auto print = [](const char* name, at::Tensor tensor) {
      return fingerprint(std::vector<NamedTensor>{{name, std::move(tensor)}});
    };
    const auto base = print("w", torch::zeros({2, 3}));
    CHECK(base == print("w", torch::ones({2, 3})));
    CHECK(base != print("v", torch::zeros({2, 3})));
    CHECK(base != print("w", torch::zeros({3, 2})));
    CHECK(base != print("w", torch::zeros({2, 3}, at::kDouble)));
    CHECK(base != fingerprint(std::vector<NamedTensor>{}));
  }
}
