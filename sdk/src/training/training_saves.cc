#include "sdk/src/training/training_saves.h"

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/decide/control_state.h"
#include "coordinator/estimates/estimates.h"
#include "coordinator/io/folder_lock.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/runtime/saved_state.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/end_states.h"
#include "sdk/src/session/run_directory.h"
#include "sdk/src/session/saved_rows.h"
#include "sdk/src/session/tick_clock.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {
namespace {

// Returns a source of bits that is the same on all ranks, and another one in every job. Collective.
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

// Makes the tensors copies in host memory. Returns whether there was memory for them; else they are
// live ones still.
bool copy_for_thread(Checkpoint& state) {
  Checkpoint copies = state;
  try {
    for (auto* tensors : {&copies.model, &copies.optimizer, &copies.reducer, &copies.parts}) {
      for (NamedTensor& each : *tensors) {
        each.tensor = each.tensor.detach().to(at::kCPU, each.tensor.scalar_type(),
                                              /*non_blocking=*/false, /*copy=*/true);
      }
    }
  } catch (const std::exception&) {
    return false;
  }
  state = std::move(copies);
  return true;
}

// The ranks 0 .. n-1 that are on one node, so that they surely see the same folder.
std::size_t ranks_beside_root(const JobFacts& job) {
  const auto& nodes = job.node_of_rank;
  const auto other = std::ranges::find_if(nodes, [&](NodeId n) { return n != nodes.front(); });
  return nodes.empty() ? job.ranks() : static_cast<std::size_t>(other - nodes.begin());
}

}  // namespace

TrainingSaves::TrainingSaves(const Parts& parts)
    : parts_(parts),
      state_(parts.session.state()),
      loss_scale_(parts.session.capabilities().loss_scale),
      added_(state_.actuators(), *this) {
  state_.job().agree(open_folder(bits_of_all_ranks(state_.job())));
}

TrainingSaves::~TrainingSaves() {
  report(thread_.finish());
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

// A run that starts afresh must not mix its saves with another's, let alone remove those.
Status TrainingSaves::check_unused() const {
  const auto newest = folder_->newest();
  if (config().resume || !newest) return ok_status();
  return failed_precondition("checkpoint.directory: expected a folder without saves, found " +
                             newest->string() +
                             "; set checkpoint.resume=on to go on from it, or another folder");
}

// Rank 0 alone looks for it: it may have to set damaged ones aside.
std::filesystem::path TrainingSaves::find_save() {
  std::uint64_t step = 0;
  Status found;
  if (state_.job().rank() == kRoot) {
    const auto on_damage = config().strict ? CheckpointFolder::OnDamage::refuse
                                           : CheckpointFolder::OnDamage::set_aside;
    const auto save = folder_->newest_whole(
        on_damage, [this](const std::string& line) { state_.job().log().error(line); });
    found = save.status();
    if (save.ok()) {
      step = io::step_of_save(*save).value_or(0);
    } else if (found.code() == StatusCode::not_found) {
      found = not_found("checkpoint.resume: expected a save in " + config().directory +
                        ", found none; start without checkpoint.resume");
    }
  }
  state_.job().agree(found);
  const std::filesystem::path save = folder_->save_of(state_.job().gather(step).front());
  folder_->go_on_from(save);
  return save;
}

TrainingSaves::Resumed TrainingSaves::resume() {
  const std::filesystem::path save = find_save();
  auto checkpoint = CheckpointFolder::read(save);
  state_.job().agree(checkpoint.status());
  parts_.session.together([&] { require(parts_.trained.restore(*checkpoint), "resume"); });
  adopt(checkpoint->position);
  if (is_by_position(checkpoint->optimizer) && state_.job().is_root()) {
    state_.job().log().warning(
        "resume: the save has the optimizer's state as an archive of torch, without names; it is "
        "matched by the position of parameters");
  }
  if (state_.job().rank() == kRoot) {
    auto control = CheckpointFolder::read_control(save);
    if (control.ok()) {
      state_.control().restore(std::move(*control));
    } else {
      state_.job().log().warning("the coordinator starts afresh: " + control.status().text());
    }
    state_.job().log().info("resumed at step " + std::to_string(parts_.position.step));
  }
  unclaimed_ = std::move(checkpoint->parts);
  return {std::move(checkpoint->reducer), std::move(checkpoint->numbers)};
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

void TrainingSaves::add(std::string_view name, TrainingPart part) {
  const bool is_taken =
      std::ranges::any_of(parts_added_, [&](const Part& p) { return p.name == name; });
  if (name.empty() || name.find('/') != name.npos || is_taken || !part.state || !part.load) {
    throw Error(invalid_argument("add_state: expected a name without '/' that no other state has, "
                                 "and functions to save and load it, found \"" +
                                 std::string(name) + "\"" + (is_taken ? ", which is taken" : "")),
                Error::Scope::all_ranks);
  }
  parts_added_.push_back({std::string(name), std::move(part)});
  if (!config().resume) return;
  const auto named = state_.job().world().name_calls("Trainer::add_state");
  const Status loaded = load_part(parts_added_.back(), unclaimed_);
  const std::string prefix = parts_added_.back().name + "/";
  std::erase_if(unclaimed_, [&](const NamedTensor& n) { return n.name.starts_with(prefix); });
  if (loaded.code() != StatusCode::not_found) return state_.job().agree(loaded);
  state_.job().agree(ok_status());
  if (!state_.job().is_root()) return;
  state_.job().log().warning("the save has no state \"" + parts_added_.back().name +
                             "\"; it goes on from its present values");
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
        "\" that the program did not add (Trainer::add_state); it is left behind");
  }
}

std::vector<NamedTensor> TrainingSaves::part_states() const {
  std::vector<NamedTensor> all;
  for (const Part& part : parts_added_) {
    for (NamedTensor& named : part.of.state())
      all.push_back({part.name + "/" + named.name, std::move(named.tensor)});
  }
  return all;
}

Checkpoint TrainingSaves::capture() const {
  Checkpoint all = parts_.trained.capture();
  all.position = parts_.position;
  all.parts = part_states();
  return all;
}

Status TrainingSaves::restore_parts(const Checkpoint& state) const {
  for (const Part& part : parts_added_) {
    if (Status loaded = load_part(part, state.parts); !loaded.ok()) return loaded;
  }
  return ok_status();
}

std::int64_t TrainingSaves::part_bytes() const {
  return bytes_of(part_states());
}

bool TrainingSaves::is_due() const {
  const std::uint64_t step = parts_.position.step;
  return is_behind() && config().every_steps > 0 && step > 0 && step % config().every_steps == 0;
}

void TrainingSaves::adopt(const TrainingPosition& resumed) {
  const std::uint64_t seed = state_.job().config().run.seed;
  // The cursor of a save is a place in one order of samples.
  if (resumed.seed && *resumed.seed != seed) {
    throw Error(
        failed_precondition("resume: expected run.seed=" + std::to_string(*resumed.seed) +
                            ", with which the save was made, found " + std::to_string(seed) +
                            "; another seed gives samples another order"),
        Error::Scope::all_ranks);
  }
  parts_.position = resumed;
  loss_scale_.restore(resumed.scaler);
  saved_step_ = resumed.step;
  state_.step().set_next(StepId(resumed.step));
  state_.control().directory().go_on_at(StepId(resumed.step));
}

void tell_unnamed(const Membership& job, const OptimizerPort& optimizer) {
  const std::vector<std::string> unnamed = optimizer.unnamed();
  if (unnamed.empty() || !job.is_root()) return;
  job.log().warning(concat("checkpoint: expected an optimizer of the model's parameters, found ",
                           unnamed.size(), " that the model does not have (", unnamed.front(),
                           ", ...); their state is saved by place, and their values are not"));
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

RankId saver_of(std::span<const std::uint32_t> paces, std::size_t at_hand) {
  const auto some = paces.first(std::min(at_hand, paces.size()));
  const auto most = std::ranges::max_element(some);
  const bool is_slower = !some.empty() && std::uint64_t{*most} * 4 > std::uint64_t{some[0]} * 5;
  return is_slower ? RankId(static_cast<std::int32_t>(most - some.begin())) : kRoot;
}

RankId TrainingSaves::choose_saver() {
  if (is_written_by_root_ || !state_.control().is_started()) return kRoot;
  const WaitingScope waiting(state_.recorder());
  const RankId saver =
      saver_of(agreed_paces(state_), ranks_beside_root(state_.control().plane().job()));
  const bool moves = saver != std::exchange(saver_, saver);
  if (!moves || !state_.job().is_root()) return saver;
  state_.job().log().info(
      saver == kRoot
          ? "saves are written by rank 0 again"
          : sentence("saves are written by rank %d from now on: rank 0 is slower", saver.value()));
  return saver;
}

// The coordinator's state is rank 0's, and each rank has rows of its own. Collective.
Result<TrainingSaves::Gathered> TrainingSaves::gather_for(RankId saver) {
  const WaitingScope waiting(state_.recorder());
  state_.control().directory().flush();
  Gathered gathered{{}, saved_rows(state_, saver)};
  Status failed;
  if (const auto control = state_.control().state()) {
    auto file = runtime::control_state_file(*control);
    failed = file.status();
    if (file.ok()) gathered.control = std::move(*file);
  }
  if (saver != kRoot)
    failed = agree_on_status(state_.job().all(), failed, state_.job().world().between_polls());
  if (!failed.ok()) return failed;
  if (saver == kRoot) return gathered;
  gathered.control.resize(state_.job().gather(gathered.control.size()).front());
  const Status sent =
      broadcast(state_.job().all(), std::as_writable_bytes(std::span(gathered.control)), kRoot);
  if (!sent.ok()) return sent;
  return gathered;
}

TrainingSaves::Where TrainingSaves::place_of(OnFailure on_failure) const {
  const MemoryConfig& memory = state_.job().config().memory;
  const bool has_budget = memory.budget.kind != BudgetKind::none || !memory.budget_of_rank.empty();
  return on_failure == OnFailure::report && !has_budget ? Where::beside_steps : Where::here;
}

void TrainingSaves::report(const std::optional<Status>& outcome) const {
  if (outcome && !outcome->ok()) state_.job().log().error(outcome->message());
}

void TrainingSaves::settle() {
  if (!folder_) return;
  const auto named = state_.job().world().name_calls("the end of a save");
  const WaitingScope waiting(state_.recorder());
  state_.job().agree(thread_.finish().value_or(ok_status()));
}

Status TrainingSaves::write_here(Gathered gathered, Where where) {
  state_.recorder().activity().do_between_steps(Activity::saving, Clock::now());
  Checkpoint checkpoint = capture();
  checkpoint.numbers = std::move(gathered.rows);
  checkpoint.incarnation = state_.control().plane().start_facts().incarnation;
  checkpoint.world_size = state_.job().world_size();
  const bool is_copied = where == Where::beside_steps && copy_for_thread(checkpoint);
  const auto write = [this, saved = std::move(checkpoint), control = std::move(gathered.control)] {
    return folder_->write(saved, control, config().keep);
  };
  Status written;
  if (is_copied) {
    thread_.begin(write);
  } else {
    written = write();
  }
  state_.recorder().activity().do_between_steps(Activity::outside, Clock::now());
  return written;
}

// Weights that differ between ranks end the job, since nobody knows which are right. Those that are
// not finite may be rolled back yet.
Status TrainingSaves::check_weights() const {
  const WaitingScope waiting(state_.recorder());
  const EndFinding found = compare_end_states(state_.job(), state_.actuators(), Leaves::save);
  if (!found.different.empty()) {
    throw Error(failed_precondition("save: expected the same weights on all ranks, found that " +
                                    found.different + "; nothing is saved"),
                Error::Scope::all_ranks);
  }
  if (found.not_finite.empty()) return ok_status();
  return failed_precondition("save: expected finite weights, found that " + found.not_finite +
                             "; nothing is saved");
}

void TrainingSaves::write(OnFailure on_failure) {
  const auto named = state_.job().world().name_calls("a save");
  report(thread_.finish());
  const Status sound = check_weights();
  if (!sound.ok()) {
    if (on_failure == OnFailure::raise) throw Error(sound, Error::Scope::all_ranks);
    if (state_.job().is_root()) state_.job().log().error(sound.message());
    return;
  }
  const RankId saver = choose_saver();
  auto gathered = gather_for(saver);
  Status written = gathered.status();
  if (written.ok() && state_.job().rank() == saver) {
    written = write_here(std::move(*gathered), place_of(on_failure));
  } else {
    folder_->leave_to_other();
  }
  if (!written.ok() && on_failure == OnFailure::report) state_.job().log().error(written.message());
  if (on_failure == OnFailure::raise) {
    const WaitingScope waiting(state_.recorder());
    state_.job().agree(written);
  }
  saved_step_ = parts_.position.step;
}

}  // namespace cox::detail
