#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/io/save_folder.h"
#include "coordinator/testing/random.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/checkpoint/save_layout.h"
#include "tests/sdk/temp_folder.h"
#include "tests/support/small_files_only.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

// Returns the state of a model with a tied and an empty tensor, AdamW, averages and master weights.
Checkpoint made_state(std::uint64_t step) {
  Checkpoint made;
  made.position = {step, step * 8, 7, 4096, 0, 1, 2, {}};
  torch::manual_seed(step);
  const at::Tensor embedding = torch::randn({40, 12});
  made.model = {{"embedding", embedding}, {"head", embedding}, {"empty", torch::empty({0, 3})}};
  for (int i = 0; i < 12; ++i) {
    const std::string name = "layers." + std::to_string(i) + ".weight";
    made.model.push_back({name, torch::randn({i + 1, 7})});
    made.optimizer.push_back({"exp_avg." + name, torch::randn({i + 1, 7})});
    if (i % 3 != 0) made.optimizer.push_back({"step." + name, torch::full({}, i, at::kLong)});
    made.parts.push_back({"average/" + name, torch::randn({i + 1, 7}, at::kDouble)});
    made.parts.push_back({"masters/" + name, torch::randn({i + 1, 7}).to(at::kBFloat16)});
  }
  made.reducer = {{"order", torch::arange(13)}};
  return made;
}

// The ranks of one job, which save into a folder.
struct Ranks {
  Ranks(const std::filesystem::path& directory, std::size_t count) {
    for (std::size_t r = 0; r < count; ++r) {
      folders.push_back(*CheckpointFolder::open(directory));
      SaveWriter writer{"rank " + std::to_string(r), [] { return UnixTime{1}; },
                        [random = testing::Random(5)]() mutable { return random.bits(); }};
      if (r > 0) {
        folders[r].join(std::move(writer));
      } else {
        REQUIRE(folders[0].claim(std::move(writer)).ok());
      }
    }
  }

  std::size_t count() const { return folders.size(); }

  // Lets all ranks write their parts at once. `own` is each rank's own data.
  Status write(Checkpoint state, const std::vector<std::uint32_t>& paces) {
    separate_tied(state);
    OwnTensorsOfKinds own_kinds{};
    own_kinds[kNumbersKind] = OwnTensors::of_every_rank;
    const SaveLayout layout = lay_out(state, own_kinds, paces);
    whole = {count(), places_of(state, layout)};
    std::vector<Status> outcomes(count());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < count(); ++r) {
      ticket = folders[r].draw(state.position.step);
      threads.emplace_back([&, r, to = ticket] {
        Checkpoint own;
        own.numbers = {{"fp8.rank" + std::to_string(r), torch::full({3}, static_cast<double>(r))}};
        outcomes[r] = folders[r].write_part(to, {.rank = r,
                                                 .ranks = count(),
                                                 .incarnation = 1,
                                                 .files = part_of(state, own, layout, r),
                                                 .control = {}});
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& each : outcomes) {
      if (!each.ok()) return each;
    }
    return ok_status();
  }
  Status publish() { return folders[0].publish(ticket, whole, 9); }

  std::vector<CheckpointFolder> folders;
  SaveTicket ticket;  // the newest save's
  WholeSave whole;
};

std::vector<std::uint32_t> alike(std::size_t ranks) {
  return std::vector<std::uint32_t>(ranks, 1000);
}

void check_same(std::vector<NamedTensor> found, std::vector<NamedTensor> expected) {
  REQUIRE(found.size() == expected.size());
  std::ranges::sort(expected, {}, &NamedTensor::name);
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].name == expected[i].name);
    CHECK((found[i].tensor.scalar_type() == expected[i].tensor.scalar_type()));
    CHECK(torch::equal(found[i].tensor, expected[i].tensor));
  }
}

std::set<std::string> files_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

std::map<std::size_t, std::uint64_t> bytes_by_rank(const Checkpoint& state,
                                                   const SaveLayout& layout) {
  std::map<std::size_t, std::uint64_t> bytes;
  for (std::size_t kind = 0; kind < kSaveKinds.size(); ++kind) {
    const auto& tensors = state.*kSaveKinds[kind].tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      bytes[layout.kinds[kind].owner[i]] += tensors[i].tensor.nbytes();
  }
  return bytes;
}

}  // namespace

TEST_SUITE("the parts of a save") {
  TEST_CASE("what one to eight ranks wrote is read as it was, with the names that are tied") {
    for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
      CAPTURE(ranks);
      const TempFolder temp;
      Ranks job(temp / "saves", ranks);
      const Checkpoint state = made_state(ranks);
      REQUIRE(job.write(state, alike(ranks)).ok());
      REQUIRE(job.publish().ok());
      const auto save = job.folders[0].save_of(ranks);
      REQUIRE(io::verify_save(save, io::VerifyDepth::pieces).ok());
      const auto read = CheckpointFolder::read(save);
      REQUIRE(read.ok());
      CHECK(read->position.cursor == ranks * 8);
      check_same(read->model, state.model);
      check_same(read->optimizer, state.optimizer);
      check_same(read->reducer, state.reducer);
      check_same(read->parts, state.parts);
      CHECK(read->numbers.size() == ranks);
    }
  }

  TEST_CASE("several ranks' files are called and indexed as Hugging Face calls them") {
    const TempFolder temp;
    Ranks job(temp / "saves", 2);
    REQUIRE(job.write(made_state(3), alike(2)).ok());
    REQUIRE(job.publish().ok());
    const auto save = job.folders[0].save_of(3);
    CHECK(files_in(save) ==
          std::set<std::string>{
              "manifest.json", "model-00001-of-00002.safetensors",
              "model-00002-of-00002.safetensors", "model.safetensors.index.json",
              "numbers-00001-of-00002.safetensors", "numbers-00002-of-00002.safetensors",
              "numbers.safetensors.index.json", "optimizer-00001-of-00002.safetensors",
              "optimizer-00002-of-00002.safetensors", "optimizer.safetensors.index.json",
              "parts-00001-of-00002.safetensors", "parts-00002-of-00002.safetensors",
              "parts.safetensors.index.json", "reducer.safetensors"});
    const std::string index = read_bytes(save / "model.safetensors.index.json");
    CHECK(index.find("\"total_size\":") != std::string::npos);
    CHECK(index.find("\"embedding\":\"model-0000") != std::string::npos);
    CHECK(index.find("\"head\"") == std::string::npos);  // stored once
  }

  TEST_CASE("the bytes are divided by paces, and within the largest tensor") {
    testing::Random random(7);
    for (int trial = 0; trial < 300; ++trial) {
      Checkpoint state;
      std::uint64_t largest = 0;
      const std::size_t tensors = 1 + random.bits() % 40;
      for (std::size_t i = 0; i < tensors; ++i) {
        const auto elements = static_cast<std::int64_t>(random.bits() % 500);
        auto& list = random.bits() % 2 == 0 ? state.model : state.optimizer;
        list.push_back({"t" + std::to_string(i), torch::empty({elements})});
        largest = std::max(largest, static_cast<std::uint64_t>(elements) * 4);
      }
      std::vector<std::uint32_t> paces;
      double all_paces = 0;
      for (std::size_t r = 1 + random.bits() % 8; r > 0; --r) {
        paces.push_back(static_cast<std::uint32_t>(1 + random.bits() % 10));
        all_paces += paces.back();
      }
      const auto bytes = bytes_by_rank(state, lay_out(state, {}, paces));
      double total = 0;
      for (const auto& [rank, count] : bytes) total += static_cast<double>(count);
      for (const auto& [rank, count] : bytes) {
        const double fair = total * paces[rank] / all_paces;
        CHECK(static_cast<double>(count) <= fair + static_cast<double>(largest));
      }
    }
  }

  TEST_CASE("a rank of pace 0 writes nothing that others have, and all of pace 0 are alike") {
    const Checkpoint state = made_state(1);
    CHECK_FALSE(bytes_by_rank(state, lay_out(state, {}, std::vector{1u, 0u, 1u})).contains(1));
    const SaveLayout layout = lay_out(state, {}, std::vector{0u, 0u});
    const auto bytes = bytes_by_rank(state, layout);
    CHECK(bytes.contains(0));
    CHECK(bytes.contains(1));
  }

  TEST_CASE("a part that is missing, of another try, or without a tensor is no save") {
    const TempFolder temp;
    Ranks job(temp / "saves", 3);
    const auto refused = [&](const std::string& expected) {
      const Status published = job.publish();
      CHECK(published.message().find(expected) != std::string::npos);
      CHECK(files_in(temp / "saves") == std::set<std::string>{"saves.lock"});
    };
    REQUIRE(job.write(made_state(1), alike(3)).ok());
    std::filesystem::remove(job.ticket.folder / io::part_manifest_name(1, 3));
    refused("part-00002-of-00003.json");

    REQUIRE(job.write(made_state(1), alike(3)).ok());
    const auto part = job.ticket.folder / io::part_manifest_name(2, 3);
    const std::string earlier = read_bytes(part);
    job.folders[0].give_up(job.ticket);
    REQUIRE(job.write(made_state(1), alike(3)).ok());
    std::ofstream(job.ticket.folder / part.filename()) << earlier;
    refused("expected a part of save");

    REQUIRE(job.write(made_state(1), alike(3)).ok());
    job.whole.tensors.push_back({"model-00001-of-00003.safetensors", "lost"});
    refused("\"lost\"");
  }

  TEST_CASE("a part that a full disk stops is an error, and giving up leaves the earlier save") {
    const TempFolder temp;
    Ranks job(temp / "saves", 2);
    REQUIRE(job.write(made_state(1), alike(2)).ok());
    REQUIRE(job.publish().ok());
    Checkpoint large = made_state(2);
    large.model.push_back({"large", torch::ones({100000})});
    {
      const SmallFilesOnly full_disk(4096);
      CHECK(job.write(large, alike(2)).code() == StatusCode::resource_exhausted);
    }
    job.folders[0].give_up(job.ticket);
    CHECK(files_in(temp / "saves") == std::set<std::string>{"saves.lock", "step-000000000001"});
    CHECK(CheckpointFolder::read(*job.folders[0].newest())->position.step == 1);
  }

  TEST_CASE("a piece that is swapped, cut, missing or changed by a bit is named") {
    const TempFolder temp;
    Ranks job(temp / "saves", 4);
    REQUIRE(job.write(made_state(1), alike(4)).ok());
    REQUIRE(job.publish().ok());
    const auto save = job.folders[0].save_of(1);
    const auto first = save / "optimizer-00001-of-00004.safetensors";
    const auto second = save / "optimizer-00002-of-00004.safetensors";
    const std::string good = read_bytes(first);
    std::string flipped = good;
    flipped[good.size() - 3] ^= 4;
    for (const std::string& bad : {flipped, good.substr(0, good.size() / 2), read_bytes(second)}) {
      std::ofstream(first, std::ios::binary) << bad;
      const auto read = CheckpointFolder::read(save);
      REQUIRE_FALSE(read.ok());
      CHECK(read.status().code() == StatusCode::data_loss);
      CHECK(read.status().message().find(first.filename().string()) != std::string::npos);
    }
    std::filesystem::remove(first);
    CHECK(CheckpointFolder::read(save).status().message().find(first.filename().string()) !=
          std::string::npos);
  }
}
