#include "sdk/src/training/training_saves.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/decide/control_state.h"
#include "coordinator/estimates/estimates.h"
#include "coordinator/io/folder_lock.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/runtime/saved_state.h"
#include "coxswain/error.h"
#include "sdk/src/checkpoint/partial_load.h"
#include "sdk/src/checkpoint/tensor_file.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/end_states.h"
#include "sdk/src/session/run_directory.h"
#include "sdk/src/session/saved_rows.h"
#include "sdk/src/session/tick_clock.h"
#include "sdk/src/shard/sharding.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {
namespace {

constexpr std::uint64_t kNoMoreSaves = ~0ull;  // in place of a step

// Returns a source of bits that is the same on all ranks, and different in every job. Collective.
std::function<std::uint64_t()> bits_of_all_ranks(const Membership& job) {
  std::random_device device;
  std::vector<std::uint32_t> seeds;
  for (int i = 0; i < 2; ++i) {  // as many bits as an id has
    const std::uint64_t fresh = std::uint64_t{device()} << 32 | device();
    const std::uint64_t seed = job.gather(fresh).front();
    seeds.push_back(static_cast<std::uint32_t>(seed));
    seeds.push_back(static_cast<std::uint32_t>(seed >> 32));
  }
  std::seed_seq sequence(seeds.begin(), seeds.end());
  return std::mt19937_64(sequence);
}

// Copies the tensors to host memory. Returns whether there was memory for the copies; otherwise the
// tensors are still the live ones.
bool copy_for_thread(std::vector<PartFile>& files) {
  std::vector<PartFile> copies = files;
  try {
    for (PartFile& file : copies) {
      for (NamedTensor& each : file.tensors) {
        each.tensor = each.tensor.detach().to(at::kCPU, each.tensor.scalar_type(),
                                              /*non_blocking=*/false, /*copy=*/true);
      }
    }
  } catch (const std::exception&) {
    return false;
  }
  files = std::move(copies);
  return true;
}

}  // namespace

TrainingSaves::TrainingSaves(const Parts& parts)
    : parts_(parts),
      state_(parts.session.state()),
      loss_scale_(parts.session.capabilities().loss_scale),
      save_(state_) {
  state_.job().agree(open_folder(bits_of_all_ranks(state_.job())));
  if (folder_) state_.job().agree(folder_->check_shared());
}

Status TrainingSaves::open_folder(std::function<std::uint64_t()> random) {
  if (config().directory.empty()) {
    if (!config().resume) return ok_status();
    return invalid_argument(
        "checkpoint.resume: expected checkpoint.directory to resume from, found none; set it to "
        "the folder of the earlier run");
  }
  auto opened = CheckpointFolder::open(config().directory);
  if (!opened.ok()) return opened.status();
  folder_.emplace(std::move(*opened));
  SaveWriter writer{"run " + state_.job().config().run.name + " on " + io::this_process_text(),
                    wall_clock, std::move(random), io::kWhileProcessesEnd};
  if (state_.job().rank() != kRoot) {
    folder_->join(std::move(writer));
  } else if (Status claimed = folder_->claim(std::move(writer)); !claimed.ok()) {
    return claimed;
  }
  return check_unused();
}

// A run that starts afresh must not mix its saves with another's, or remove them.
Status TrainingSaves::check_unused() const {
  const auto newest = folder_->newest();
  if (config().resume || !newest) return ok_status();
  return failed_precondition("checkpoint.directory: expected a folder without saves, found " +
                             newest->string() +
                             "; set checkpoint.resume=on to go on from it, or another folder");
}

// Rank 0 decides whether a save is damaged and sets it aside. So a read error of another rank alone
// ends the job.
Checkpoint TrainingSaves::read_newest() {
  const Membership& job = state_.job();
  Result<Checkpoint> read = not_found("no save");
  const ReaderPlace reader{static_cast<std::size_t>(job.rank().value()),
                           static_cast<std::size_t>(job.world_size())};
  const auto read_step = [&](std::uint64_t step) {
    read = not_found("no save");  // frees the memory of the save before
    read = CheckpointFolder::read(folder_->save_of(step), reader);
    return read.status();
  };
  Status found;
  if (job.is_root()) {
    found = find_save([&](std::uint64_t step) { return read_step(job.gather(step).front()); });
    static_cast<void>(job.gather(kNoMoreSaves));
  } else {
    for (std::uint64_t step = 0; (step = job.gather(std::uint64_t{0}).front()) != kNoMoreSaves;)
      static_cast<void>(read_step(step));
  }
  job.agree(found);
  job.agree(read.status());
  folder_->go_on_from(folder_->save_of(read->position.step));
  return *std::move(read);
}

Status TrainingSaves::find_save(const std::function<Status(std::uint64_t step)>& read_step) {
  const auto on_damage =
      config().strict ? CheckpointFolder::OnDamage::refuse : CheckpointFolder::OnDamage::set_aside;
  const auto save = folder_->newest_whole(
      on_damage,
      [&](const std::filesystem::path& path) {
        return read_step(io::step_of_save(path).value_or(0));
      },
      [this](const std::string& line) { state_.job().log().error(line); });
  if (save.status().code() != StatusCode::not_found) return save.status();
  return not_found("checkpoint.resume: expected a save in ", config().directory,
                   ", found none; start without checkpoint.resume");
}

TrainingSaves::Resumed TrainingSaves::resume() {
  Checkpoint saved = read_newest();
  if (config().partial) take_what_fits(saved);
  parts_.session.together(
      [&] { require(parts_.trained.restore(saved, Handover::taken), "resume"); });
  adopt(saved.position);
  if (is_by_position(saved.optimizer) && state_.job().is_root()) {
    state_.job().log().warning(
        "resume: the save has the optimizer's state as an archive of torch, without names; the "
        "state is matched by the position of parameters");
  }
  if (state_.job().rank() == kRoot) {
    auto control = CheckpointFolder::read_control(folder_->save_of(saved.position.step));
    if (control.ok()) {
      state_.control().restore(std::move(*control));
    } else {
      state_.job().log().warning("the coordinator starts without the saved state: " +
                                 control.status().text());
    }
    state_.job().log().info("resumed at step " + std::to_string(parts_.position.step));
  }
  unclaimed_ = std::move(saved.parts);
  return {std::move(saved.reducer), std::move(saved.numbers)};
}

void TrainingSaves::take_what_fits(Checkpoint& saved) {
  PartialLoad fitted = fit_to(std::move(saved), parts_.trained.capture());
  saved = std::move(fitted.state);
  if (fitted.left.empty() || !state_.job().is_root()) return;
  state_.job().log().warning(
      "resume: the save fits this model in part (checkpoint.partial); left "
      "as the program has it: " +
      fitted.left);
}

Status TrainingSaves::load_part(const Part& part, std::span<const NamedTensor> states) {
  const std::string prefix = part.name + "/";
  std::vector<NamedTensor> own;
  for (const NamedTensor& named : states) {
    if (named.name.starts_with(prefix))
      own.push_back({named.name.substr(prefix.size()), named.tensor});
  }
  if (own.empty()) return not_found("nothing was saved of it");
  return part.of.load(own).with_context("state \"" + part.name + "\"");
}

void TrainingSaves::add(Part part) {
  const std::string& name = part.name;
  const bool is_taken =
      std::ranges::any_of(parts_added_, [&](const Part& p) { return p.name == name; });
  const bool has_functions = part.of.state && part.of.load;
  if (name.empty() || name.find('/') != name.npos || is_taken || !has_functions) {
    throw Error(invalid_argument("add_state: expected a name without '/' that no other state has, "
                                 "and functions to save and load it, found \"" +
                                 name + "\"" + (is_taken ? ", which is taken" : "")),
                Error::Scope::all_ranks);
  }
  parts_added_.push_back(std::move(part));
  if (!config().resume) return;
  const auto named = state_.job().world().name_calls("add_state");
  const Status loaded = load_part(parts_added_.back(), unclaimed_);
  const std::string prefix = parts_added_.back().name + "/";
  std::erase_if(unclaimed_, [&](const NamedTensor& n) { return n.name.starts_with(prefix); });
  const bool is_left = loaded.code() == StatusCode::not_found || (config().partial && !loaded.ok());
  state_.job().agree(is_left ? ok_status() : loaded);
  if (!is_left || !state_.job().is_root()) return;
  state_.job().log().warning("the save has no state \"" + parts_added_.back().name +
                             "\" that fits; this state keeps its present values");
}

void TrainingSaves::warn_of_unclaimed() {
  std::set<std::string> names;
  for (const NamedTensor& named : unclaimed_)
    names.insert(named.name.substr(0, named.name.find('/')));
  unclaimed_.clear();
  if (!state_.job().is_root()) return;
  for (const std::string& name : names) {
    state_.job().log().warning(
        "the save has state \"" + name +
        "\" that the program did not add (add_state); the state is not loaded");
  }
}

std::vector<NamedTensor> TrainingSaves::part_states(OwnTensors own) const {
  std::vector<NamedTensor> all;
  for (const Part& part : parts_added_) {
    if (part.own != own) continue;
    for (NamedTensor& named : part.of.state())
      all.push_back({part.name + "/" + named.name, std::move(named.tensor)});
  }
  return all;
}

// A part that the program adds is saved by rank 0 alone, which has only its own elements of a
// shard.
Status TrainingSaves::check_parts() const {
  if (!Sharding::is_wanted(state_)) return ok_status();
  for (const Part& part : parts_added_) {
    for (const NamedTensor& each : part.of.state()) {
      if (!parts_.trained.is_shard(each.tensor)) continue;
      return failed_precondition("save: expected whole tensors in the state \"", part.name,
                                 "\", found that shard.mode=state divided ", each.name,
                                 "; nothing is saved: set shard.mode=off, or save a copy");
    }
  }
  return ok_status();
}

Checkpoint TrainingSaves::capture() const {
  Checkpoint all = parts_.trained.capture();
  all.position = parts_.position;
  all.parts = part_states(OwnTensors::of_nobody);
  std::ranges::move(part_states(OwnTensors::of_root), std::back_inserter(all.parts));
  return all;
}

Status TrainingSaves::restore_parts(const Checkpoint& state) const {
  for (const Part& part : parts_added_) {
    if (Status loaded = load_part(part, state.parts); !loaded.ok()) return loaded;
  }
  return ok_status();
}

std::int64_t TrainingSaves::part_bytes() const {
  return bytes_of(capture().parts);
}

bool TrainingSaves::is_due() const {
  const std::uint64_t step = parts_.position.step;
  return is_behind() && config().every_steps > 0 && step > 0 && step % config().every_steps == 0;
}

void TrainingSaves::adopt(const TrainingPosition& resumed) {
  const std::uint64_t seed = state_.job().config().run.seed;
  // The cursor of a save is a position in one order of samples.
  if (resumed.seed && *resumed.seed != seed) {
    throw Error(
        failed_precondition(
            "resume: expected run.seed=" + std::to_string(*resumed.seed) +
            ", as in the save, found " + std::to_string(seed) +
            "; another seed orders the samples differently: resume with the seed of the save"),
        Error::Scope::all_ranks);
  }
  parts_.position = resumed;
  loss_scale_.restore(resumed.scaler);
  saved_step_ = resumed.step;
  state_.step().set_next(StepId(resumed.step));
  state_.control().directory().go_on_at(StepId(resumed.step));
}

void check_model(const Membership& job, std::span<const NamedTensor> model) {
  job.agree(check_savable(model).with_context("checkpoint.directory: expected a model to save"));
}

void tell_unnamed(const Membership& job, const OptimizerPort& optimizer) {
  const std::vector<std::string> unnamed = optimizer.unnamed();
  if (unnamed.empty() || !job.is_root()) return;
  job.log().warning(concat("checkpoint: expected an optimizer of the model's parameters, found ",
                           unnamed.size(), " that are not in the model (", unnamed.front(),
                           ", ...); the optimizer's state of these is saved by position, and their "
                           "values are not saved"));
}

void TrainingSaves::check_folder() const {
  if (folder_) return;
  throw Error(failed_precondition("save: expected a folder in checkpoint.directory, found none; "
                                  "set it to where checkpoints are to go"),
              Error::Scope::all_ranks);
}

std::vector<std::uint32_t> paces_of(std::span<const SlowRank> slow, std::size_t ranks) {
  constexpr double kOrdinary = 1000;
  std::vector<std::uint32_t> paces(ranks, static_cast<std::uint32_t>(kOrdinary));
  for (const SlowRank& one : slow) {
    const auto rank = static_cast<std::size_t>(one.rank.value());
    const bool has_time = one.phase() == Phase::communication || one.phase() == Phase::optimizer;
    if (has_time || rank >= ranks || one.slowdown_ratio <= 1) continue;
    paces[rank] = static_cast<std::uint32_t>(std::max(1.0, kOrdinary / one.slowdown_ratio));
  }
  return paces;
}

std::vector<std::uint32_t> agreed_paces(SessionState& state) {
  const std::vector<std::uint32_t>& shares = state.control().plane().plan().shares;
  if (!shares.empty()) return shares;
  const auto ranks = static_cast<std::size_t>(state.job().world_size());
  std::vector<std::uint32_t> paces = paces_of({}, ranks);
  if (ranks == 1) return paces;
  if (auto control = state.control().state()) {
    const auto known = state_of(*control, kEstimates).take_or_fresh<Estimates>();
    paces = paces_of(known.slowness.slow, ranks);
  }
  require(broadcast(state.job().all(), std::as_writable_bytes(std::span(paces)), kRoot,
                    state.job().world().between_polls()),
          "the paces of ranks");
  return paces;
}

bool TrainingSaves::has_budget() const {
  const MemoryConfig& memory = state_.job().config().memory;
  return memory.budget.kind != BudgetKind::none || !memory.budget_of_rank.empty();
}

void TrainingSaves::fall_behind() {
  saved_step_ = ~0ull;
  save_.cancel();
}

// Returns the state that is equal on all ranks, which divide it for writing, and the buffers.
Checkpoint TrainingSaves::shared_state() const {
  Checkpoint shared = parts_.trained.capture();
  shared.position = parts_.position;
  separate_tied(shared);
  shared.parts = part_states(OwnTensors::of_nobody);
  return shared;
}

// Moves state that may differ between ranks out of `shared`. Returns the part that this rank
// writes.
Checkpoint TrainingSaves::own_state(Checkpoint& shared) const {
  Checkpoint own;
  own.numbers = own_rows(state_);
  const auto is_own = [&](const NamedTensor& each) { return shared.buffers.contains(each.name); };
  if (state_.job().is_root()) {
    std::ranges::copy_if(shared.model, std::back_inserter(own.model), is_own);
    own.parts = part_states(OwnTensors::of_root);
  }
  std::erase_if(shared.model, is_own);
  return own;
}

// Returns the same result on all ranks.
OwnTensorsOfKinds TrainingSaves::own_kinds(const Checkpoint& shared, const Checkpoint& own) const {
  OwnTensorsOfKinds kinds{};
  if (!shared.buffers.empty()) kinds[kModelKind] = OwnTensors::of_root;
  if (!own.numbers.empty()) kinds[kNumbersKind] = OwnTensors::of_every_rank;
  const bool has_parts = std::ranges::any_of(
      parts_added_, [](const Part& part) { return part.own == OwnTensors::of_root; });
  if (has_parts) kinds[kPartsKind] = OwnTensors::of_root;
  return kinds;
}

// A periodic save makes no call to other ranks. If the plan has no shares, the paces are therefore
// those that ranks agreed on last, or all equal.
std::vector<std::uint32_t> TrainingSaves::paces() const {
  const auto ranks = static_cast<std::size_t>(state_.job().world_size());
  if (!state_.control().is_started()) return paces_of({}, ranks);
  const std::vector<std::uint32_t>& shares = state_.control().plane().plan().shares;
  if (shares.size() == ranks) return shares;
  return agreed_paces_.empty() ? paces_of({}, ranks) : agreed_paces_;
}

// Returns the coordinator's state as a file, on rank 0; empty if there is none.
Result<std::string> TrainingSaves::control_file() const {
  const auto control = state_.control().state();
  if (!control) return std::string();
  return runtime::control_state_file(*control);
}

// Weights that differ between ranks end the job, since no rank is known to be right.
void TrainingSaves::check_weights() const {
  const WaitingScope waiting(state_.recorder());
  const EndFinding found = compare_end_states(state_.job(), state_.actuators(), Leaves::save);
  if (!found.different.empty()) {
    throw Error(
        failed_precondition("save: expected the same weights on all ranks, found that " +
                            found.different + "; nothing is saved: resume from an earlier save"),
        Error::Scope::all_ranks);
  }
  const std::string not_finite = is_alone() ? own_not_finite() : found.not_finite;
  if (not_finite.empty()) return;
  throw Error(failed_precondition("save: expected finite weights, found that " + not_finite +
                                  "; nothing is saved: resume from an earlier save"),
              Error::Scope::all_ranks);
}

// With other ranks WeightCheck examines the weights when it compares them. Buffers may rightly be
// infinite, as masks are.
std::string TrainingSaves::own_not_finite() const {
  const Checkpoint state = parts_.trained.capture();
  for (const NamedTensor& each : state.model) {
    const bool is_finite =
        state.buffers.contains(each.name) || scan(each.tensor, ScanKind::extent).nonfinite == 0;
    if (!is_finite) return each.name + " is not finite";
  }
  return {};
}

// Checks this rank's weights alone. The next ballot compares their bits with other ranks', so all
// ranks find the same result here or learn that they diverged. Weights that are not finite may
// still be rolled back.
bool TrainingSaves::is_finite() {
  Fnv1a64 hash;
  hash.add(parts_.trained.equal_bits());
  std::string not_finite = is_alone() ? own_not_finite() : "";
  for (const EndState& each : state_.actuators().end_states()) {
    hash.add(each.bits);
    if (not_finite.empty() && !each.not_finite.empty())
      not_finite = each.not_finite + " is not finite";
  }
  save_.compare(hash.value());
  if (not_finite.empty()) return true;
  lose(failed_precondition("save: expected finite weights, found that ", not_finite,
                           "; nothing is saved"));
  return false;
}

void TrainingSaves::lose(const Status& why) {
  save_.lose(why);
  if (state_.job().is_root()) state_.job().log().error(why.message());
}

void TrainingSaves::begin(OnFailure on_failure) {
  state_.control().directory().flush();
  state_.recorder().activity().do_between_steps(Activity::saving, Clock::now());
  const auto rank = static_cast<std::size_t>(state_.job().rank().value());
  Checkpoint shared = shared_state();
  const Checkpoint own = own_state(shared);
  const SaveLayout layout = lay_out(shared, own_kinds(shared, own), paces());
  const auto& owner = layout.kinds[kOptimizerKind].owner;
  parts_.trained.complete(shared.optimizer,
                          [&](std::size_t place) { return owner[place] == rank; });
  SavePart part{.rank = rank,
                .ranks = static_cast<std::size_t>(state_.job().world_size()),
                .incarnation = state_.control().plane().start_facts().incarnation,
                .files = part_of(shared, own, layout, rank),
                .control = {}};
  auto control = control_file();
  WholeSave whole{part.ranks, {}};
  if (state_.job().is_root()) whole.tensors = places_of(shared, layout);
  if (control.ok()) part.control = *std::move(control);
  const bool is_aside =
      on_failure == OnFailure::report && !has_budget() && copy_for_thread(part.files);
  save_.begin({*folder_, folder_->draw(shared.position.step), std::move(whole), std::move(part),
               control.status(), config().keep},
              is_aside ? SharedSave::Where::beside_steps : SharedSave::Where::here);
  state_.recorder().activity().do_between_steps(Activity::outside, Clock::now());
}

// Waits for the save before, if it is still being written. If the save is lost, rank 0 logs the
// reason.
void TrainingSaves::finish_before() {
  if (!save_.is_running()) return;
  const Status finished = save_.finish();
  if (!finished.ok() && state_.job().is_root()) state_.job().log().error(finished.message());
}

void TrainingSaves::settle() {
  const auto named = state_.job().world().name_calls("the end of a save");
  if (save_.is_running()) static_cast<void>(save_.finish());
  if (!save_.lost().ok()) throw Error(save_.lost(), Error::Scope::all_ranks);
}

void TrainingSaves::write(OnFailure on_failure) {
  const auto named = state_.job().world().name_calls("a save");
  finish_before();
  const Status whole = check_parts();
  if (on_failure == OnFailure::raise) {
    if (!whole.ok()) throw Error(whole, Error::Scope::all_ranks);
    check_weights();
    if (state_.control().is_started()) agreed_paces_ = agreed_paces(state_);
  } else if (!whole.ok()) {
    return lose(whole);
  } else if (!is_finite()) {
    return;
  }
  saved_step_ = parts_.position.step;
  begin(on_failure);
  if (on_failure == OnFailure::report) return;
  if (const Status finished = save_.finish(); !finished.ok())
    throw Error(finished, Error::Scope::all_ranks);
}

}  // namespace cox::detail
