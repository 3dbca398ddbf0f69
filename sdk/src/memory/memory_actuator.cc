#include "sdk/src/memory/memory_actuator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/planner/memory_problem.h"
#include "coordinator/policies/memory/rank_memory.h"
#include "coordinator/runtime/control_plane.h"
#include "coxswain/error.h"
#include "metrics/records/planning_files.h"
#include "metrics/records/step_row.h"
#include "sdk/src/blocks/bits_comparison.h"
#include "sdk/src/blocks/block_rules.h"
#include "sdk/src/blocks/timed_run.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/memory/pinned_tier.h"
#include "sdk/src/memory/storage_levels.h"
#include "sdk/src/memory/tier.h"

namespace cox::detail {
namespace {

// Runs of a trial step that time operators; the least time of each counts.
constexpr int kTimedRuns = 3;
// Of one step, to find out whether it differs by itself.
constexpr int kRunsCompared = 3;

std::int64_t budget_bytes(const MemoryConfig& config, RankId id, std::int64_t limit_bytes) {
  RankMemory rank;
  rank.rank = id;
  rank.limit_bytes = limit_bytes;
  rank.keep_bytes = limit_bytes;  // as if everything were needed
  return budget_of(config, rank).bytes;
}

// Ranks of a node look one after another, and what is free changes all the time: down to 1/64 they
// are to agree, and so to get the same plan.
std::int64_t rounded(std::int64_t limit_bytes) {
  const std::uint64_t step = std::bit_floor(static_cast<std::uint64_t>(limit_bytes)) / 64;
  return step == 0 ? limit_bytes : limit_bytes - limit_bytes % static_cast<std::int64_t>(step);
}

// What takes the least memory in a step that is larger than the one that was measured need not do
// so there, where the peak may be at another place: each block holds as little as it can.
Actions least_held(const MemoryProblem& problem, std::size_t blocks) {
  Actions actions(blocks, MemoryAction::keep);
  for (const Stage& stage : problem.stages) {
    if (stage.block == kGap) continue;
    MemoryAction& best = actions[static_cast<std::size_t>(stage.block)];
    for (std::size_t a = 0; a < stage.options.size(); ++a) {
      const StageOption& option = stage.options[a];
      const bool is_less = option.kept_bytes < stage.option(best).kept_bytes;
      if (option.allowed && (is_less || !stage.option(best).allowed))
        best = static_cast<MemoryAction>(a);
    }
  }
  return actions;
}

// No action may change a bit; where one does, or the step differs by more than what is known of
// it, nothing is planned.
Status same_gradients(const TrialStep& step, const GradientPrints& before,
                      const GradientSpread& spread) {
  const std::optional<std::size_t> unlike = spread.first_unlike(step.gradients(), before);
  if (!unlike) return ok_status();
  return failed_precondition(
      "memory: expected the same gradients from the same step under every memory action, found "
      "others for parameter " +
      step.parameter_names()[*unlike] +
      "; activations are kept. Does the loss depend on more than the batch, the parameters and " +
      "torch's random numbers?");
}

}  // namespace

MemoryActuator::MemoryActuator(const MemoryConfig& config, std::string run_directory, RankId rank,
                               BlockWatch& blocks, MemoryProbe& probe, Log log)
    : config_(config),
      run_directory_(std::move(run_directory)),
      rank_(rank),
      blocks_(blocks),
      probe_(probe),
      log_(std::move(log)),
      is_wanted_(config.mode ? *config.mode != PolicyMode::off : wants_memory_plan(config)) {}

Status MemoryActuator::prepare() {
  return is_wanted_ ? install_counting_allocator() : ok_status();
}

Status MemoryActuator::check(LoopKind) {
  const std::vector<std::string> names = blocks_.names();
  const Status forced = check_rules_fit("memory.force", config_.force, names);
  return forced.ok() ? check_rules_fit("memory.forbid", config_.forbid, names) : forced;
}

ActionSet MemoryActuator::actions() const {
  ActionSet actions = only(MemoryAction::keep);
  if (!is_wanted_) return actions;
  for (std::size_t a = 0; config_.recompute && a < kMemoryActionNames.size(); ++a) {
    const auto action = static_cast<MemoryAction>(a);
    if (is_recompute(action)) actions |= only(action);
  }
  if (config_.tile) actions |= only(MemoryAction::tile);
  const bool has_tier = !config_.tier_directory.empty() || !probe_.memory().device().is_cpu();
  if (config_.offload && has_tier) actions |= only(MemoryAction::offload);
  return actions;
}

void MemoryActuator::open(const MemoryShare& share) {
  share_ = share;
  if (contains(actions(), MemoryAction::offload)) open_tier();
}

void MemoryActuator::open_tier() {
  OffloadOptions options;
  options.device = probe_.memory().device();
  options.folder = config_.tier_directory;
  if (share_.tier_bytes > 0) options.tier_bytes = share_.tier_bytes;
  options.smallest_bytes = config_.smallest_bytes;
  options.report = [log = log_](const Status& trouble) { log.warning(trouble.message()); };
  const bool has_device = !options.device.is_cpu();
  const auto speed = has_device ? measure_pinned(options.device) : measure_tier(options.folder);
  if (!speed.ok()) {  // a folder that is missing, read-only or full
    log_.warning(std::string(has_device ? "memory: " : "memory.tier_directory: ") +
                 speed.status().message() + "; nothing is offloaded");
    return;
  }
  offloader_ = std::make_unique<Offloader>(std::move(options));
  if (!offloader_->tier_status().ok()) {
    offloader_.reset();
    return;
  }
  copy_bytes_per_ms_ = std::min(speed->write_bytes_per_ms, speed->read_bytes_per_ms);
  blocks_.visits()->parts().region.set_offload(
      [this](const std::string& block) { return offloader_->open_frame(block); });
}

TrialSettings MemoryActuator::trial_settings() const {
  TrialSettings settings;
  settings.actions = actions();
  if (!offloader_) settings.actions = cox::without(settings.actions, MemoryAction::offload);
  settings.budget_bytes = budget_bytes(config_, rank_, share_.limit_bytes);
  settings.copy_bytes_per_ms = copy_bytes_per_ms_;
  settings.has_tiles = [this] { return blocks_.visits()->parts().region.has_tiles(); };
  return settings;
}

Result<MemoryProblem> MemoryActuator::measure(
    TrialStep& step, std::int64_t resident_later_bytes, const std::function<void()>& forget_run,
    std::function<Result<std::int64_t>(const Actions&)> other_peak) {
  const std::int64_t base_bytes = probe_.memory().count().live_bytes + resident_later_bytes;
  TrialSettings settings = trial_settings();
  settings.budget_bytes -= resident_later_bytes;
  GradientPrints gradients;
  const auto pass = [&](const Actions& actions) -> Result<StepReading> {
    steer(actions);
    if (offloader_) offloader_->begin_step();
    if (forget_run) forget_run();
    auto reading = traced(step);
    if (!reading.ok()) return reading;
    if (gradients.empty()) gradients = step.gradients();
    const Status same = same_gradients(step, gradients, spread_);
    return same.ok() ? std::move(reading) : Result<StepReading>(same);
  };
  if (!levels_ && has_levels()) {
    VisitParts& visits = blocks_.visits()->parts();
    levels_.emplace(visits.region, visits.steering, probe_.memory());
    run_recomputed(step, forget_run);
    levels_->learn();
  }
  settings.levels = levels_ ? &*levels_ : nullptr;
  settings.other_peak = std::move(other_peak);
  auto problem = measure_problem(blocks_.size(), settings, pass);
  followed_.reset();
  if (!problem.ok()) return problem;
  problem->base_bytes = base_bytes;
  restrict_to_rules(*problem);
  tell_pinned();
  problem_ = *problem;
  return problem;
}

void MemoryActuator::tell_pinned() {
  for (const PinnedBlock& pinned : blocks_.pinned()) {
    if (std::ranges::find(told_pinned_, pinned.block) != told_pinned_.end()) continue;
    told_pinned_.push_back(pinned.block);
    log_.warning("memory: block " + blocks_.names()[pinned.block.value()] +
                 " is kept: " + pinned.reason);
  }
}

void MemoryActuator::predict(const Actions& actions) {
  predicted_peak_bytes_ = 0;
  if (!problem_) return;
  Actions per_stage;
  for (const Stage& stage : problem_->stages) {
    const bool is_gap = stage.block == kGap;
    per_stage.push_back(is_gap ? MemoryAction::keep
                               : actions[static_cast<std::size_t>(stage.block)]);
  }
  predicted_peak_bytes_ = planner::schedule(*problem_, per_stage).peak_bytes;
}

void MemoryActuator::restrict_to_rules(MemoryProblem& problem) const {
  const std::vector<std::string> names = blocks_.names();
  for (Stage& stage : problem.stages) {
    if (stage.block == kGap) continue;
    const ActionSet allowed =
        allowed_actions(config_, names[static_cast<std::size_t>(stage.block)]);
    bool any = false;
    for (std::size_t a = 0; a < stage.options.size(); ++a) {
      StageOption& option = stage.options[a];
      option.allowed = option.allowed && contains(allowed, static_cast<MemoryAction>(a));
      any = any || option.allowed;
    }
    // A block whose forced action cannot be carried out here is kept.
    if (!any) stage.options[static_cast<std::size_t>(MemoryAction::keep)].allowed = true;
  }
  if (share_.tier_bytes > 0) problem.tier_bytes = share_.tier_bytes;
  if (config_.most_recomputed < 1) {
    problem.most_recomputed = static_cast<std::int32_t>(
        std::floor(config_.most_recomputed * static_cast<double>(names.size())));
  }
}

void MemoryActuator::forget() {
  levels_.reset();
  problem_.reset();
  front_.reset();
  followed_.reset();
  spread_ = {};
  asked_.clear();
  told_pinned_.clear();
  predicted_peak_bytes_ = 0;
}

Result<StepReading> MemoryActuator::traced(TrialStep& step) {
  TraceRecorder trace(probe_.memory());
  trace.start(steady_now(), [this] { return offloader_ ? offloader_->counts().written_bytes : 0; });
  const auto ran = run_timed(
      *blocks_.visits(), [&] { return step.run(); },
      [&trace](BlockId block, BlockEdge edge, Nanoseconds now) { trace.note(block, edge, now); });
  const StepTrace seen = trace.finish(steady_now());
  if (!ran.ok()) return ran.status();
  return read_stages(seen, blocks_.size());
}

void MemoryActuator::steer(const Actions& actions) {
  asked_ = actions;
  for (std::size_t b = 0; b < actions.size(); ++b)
    blocks_.visits()->parts().steering.set_action(BlockId(static_cast<BlockId::rep>(b)),
                                                  actions[b]);
}

void MemoryActuator::apply(const Plan& plan, RoundId round) {
  if (offloader_) offloader_->begin_step();
  if (is_wanted_ && blocks_.visits() != nullptr) {
    tell_pinned();
    const bool is_due = config_.verify_steps > 0 && round.value() % config_.verify_steps == 0;
    blocks_.visits()->parts().comparison.compare(
        BitsComparison::Comparing(is_due && round.value() > 0));
  }
  if (!is_wanted_ || followed_ == plan.id) return;
  followed_ = plan.id;
  Actions actions(blocks_.size());
  for (std::size_t b = 0; b < actions.size(); ++b) {
    actions[b] = action_of(plan, rank_, BlockId(static_cast<BlockId::rep>(b)));
  }
  steer(actions);
  predict(actions);
}

std::int64_t MemoryActuator::predicted_peak_with(std::uint64_t samples) const {
  if (predicted_peak_bytes_ == 0 || samples == 0) return predicted_peak_bytes_;
  MemoryModel model;
  model.base_bytes = problem_->base_bytes;
  model.samples = samples_;
  return peak_with(model, predicted_peak_bytes_, std::min(samples, kMaxStepSamples));
}

bool MemoryActuator::make_room(double growth, RoomUntil until) {
  if (!problem_ || predicted_peak_bytes_ == 0) return false;
  const auto base = static_cast<double>(problem_->base_bytes);
  const auto most = static_cast<double>(budget_bytes(config_, rank_, share_.limit_bytes));
  const auto fits = [&](std::int64_t peak) {
    return base + growth * (static_cast<double>(peak) - base) <= most;
  };
  if (fits(predicted_peak_bytes_)) return false;
  if (!front_) {
    auto facts = planner::memory_facts({{*problem_, share_.limit_bytes, samples_}}, blocks_.size());
    if (!facts.ok()) return false;
    front_ = std::move(facts->models.front().front);
  }
  // From the least memory to the least time.
  std::size_t points = front_->size();
  while (points > 0 && !fits((*front_)[points - 1].peak_bytes)) --points;
  const Actions actions =
      points > 0 ? (*front_)[points - 1].actions : least_held(*problem_, blocks_.size());
  if (actions == asked_) return false;
  steer(actions);
  if (until == RoomUntil::next_step) followed_.reset();
  return true;
}

Seconds MemoryActuator::spent() const {
  Seconds all(0);
  if (const VisitWatch* visits = blocks_.visits()) all += visits->parts().region.replayed();
  if (offloader_) all += std::chrono::nanoseconds(offloader_->counts().waited_ns);
  return all;
}

// A part of the phase is no longer than the phase; a step without times has none of either.
void MemoryActuator::sign(RankSignal& signal) const {
  const float backward = signal.phase_seconds[static_cast<std::size_t>(Phase::backward)];
  signal.recompute_seconds = std::min(backward, static_cast<float>(spent_in_step_.count()));
}

void MemoryActuator::end_step(const StepEnd& step, StepOutput& output) {
  spent_in_step_ = std::max(Seconds(0), spent() - spent_before_);
  if (output.row == nullptr) return;
  const float backward = output.row->phase_seconds[static_cast<std::size_t>(Phase::backward)];
  output.row->recompute_seconds = std::min(backward, static_cast<float>(spent_in_step_.count()));
  output.row->predicted_peak_bytes = predicted_peak_with(step.samples);
  for (std::size_t b = 0; b < step.plan.precision.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    const MemoryAction action = action_of(step.plan, step.rank, block);
    if (is_recompute(action)) ++output.row->recomputed_blocks;
    if (action == MemoryAction::offload) ++output.row->offloaded_blocks;
    if (action == MemoryAction::tile) ++output.row->tiled_blocks;
  }
}

Fragment MemoryActuator::next_fragment() {
  for (const PinnedBlock& pinned : blocks_.pinned()) {
    const std::size_t b = pinned.block.value();
    if (asked_.empty() || asked_[b] == MemoryAction::keep) continue;
    BlockFailure failure;
    failure.block = pinned.block;
    failure.blocks = static_cast<std::uint16_t>(blocks_.size());
    failure.action = asked_[b];
    const std::size_t length = std::min(pinned.reason.size(), failure.what.size() - 1);
    std::copy_n(pinned.reason.begin(), length, failure.what.begin());
    return make_fragment(failure);
  }
  return {};
}

void MemoryActuator::calibrate(const SampleStep& sample, CalibrationHost& host) {
  const std::int32_t neighbours = std::max(1, host.ranks().ranks_on_node());
  MemoryShare share;
  probe_.look_around();
  share.limit_bytes = rounded(static_cast<std::int64_t>(probe_.reading().limit_bytes));
  share.tier_bytes = config_.tier_bytes / neighbours;
  open(share);
  planner::RankProblem mine{{}, share.limit_bytes, sample.samples};
  samples_ = sample.samples;
  if (has_levels()) find_levels(sample, host);
  if (sample.loss) {
    auto problem = measure_sample(sample, host);
    if (!problem.ok() && explain_unequal(sample, host)) problem = measure_sample(sample, host);
    if (problem.ok()) {
      mine.problem = std::move(*problem);
    } else {
      log_.warning(problem.status().message());
    }
  }
  start_from(require(gather_problems(host.ranks(), mine)), host);
  apply(host.plan(), {});
}

bool MemoryActuator::has_levels() const {
  return blocks_.visits() != nullptr && contains(actions(), MemoryAction::recompute_1);
}

// Operators on a device are timed with the device waited for, one by one.
void MemoryActuator::run_recomputed(TrialStep& step, const std::function<void()>& forget_run) {
  steer(Actions(blocks_.size(), MemoryAction::recompute));
  for (int run = 0; run < kTimedRuns; ++run) {
    if (forget_run) forget_run();
    if (!run_timed(*blocks_.visits(), [&] { return step.run(); }).ok()) return;
  }
}

// A rank whose runs fail has no operators to tell; what failed is told when it measures.
void MemoryActuator::find_levels(const SampleStep& sample, CalibrationHost& host) {
  VisitParts& visits = blocks_.visits()->parts();
  levels_.emplace(visits.region, visits.steering, probe_.memory());
  if (sample.loss) {
    TrialStep step(sample.model, sample.loss);
    run_recomputed(step, [&] {
      host.forget_run();
      if (sample.release) sample.release();
    });
  }
  require(levels_->learn_together(host.ranks()), "memory");
}

// Looks for what made the gradients of two runs differ: the step itself, which is then compared
// by what backward gets, or blocks that cannot be recomputed. Returns whether something was found,
// so that measuring again is worth it.
bool MemoryActuator::explain_unequal(const SampleStep& sample, CalibrationHost& host) {
  if (blocks_.visits() == nullptr) return false;
  TrialStep step(sample.model, sample.loss);
  const auto run = [&](const Actions& actions) {
    steer(actions);
    if (offloader_) offloader_->begin_step();
    host.forget_run();
    if (sample.release) sample.release();
    const Status ran = step.run();
    blocks_.visits()->forget_step();
    return ran.ok() ? step.gradients() : GradientPrints();
  };
  return learn_spread(run) || pin_unequal(run);
}

bool MemoryActuator::learn_spread(const Run& run) {
  const std::size_t known = spread_.unsteady();
  const Actions recompute(blocks_.size(), MemoryAction::recompute);
  const GradientPrints first = run(recompute);
  for (int again = 1; again < kRunsCompared; ++again) spread_.note(first, run(recompute));
  if (spread_.unsteady() == known) return false;
  log_.info(concat("memory: the gradients of ", spread_.unsteady(), " of ", first.size(),
                   " parameters differ from run to run of one step by themselves (kernels that add "
                   "up in no fixed order, as those of fused attention on a GPU); what backward "
                   "gets is compared in their place"));
  blocks_.visits()->parts().comparison.compare(BitsComparison::Comparing::on);
  run(recompute);
  if (offloader_) run(Actions(blocks_.size(), MemoryAction::offload));
  blocks_.visits()->parts().comparison.compare(BitsComparison::Comparing::off);
  return true;
}

// Keeps the blocks of a followed model whose gradients differ once they are recomputed. Compared
// with one block kept at a time, which needs little more memory than none. An adopted model's were
// compared with those of its own step. Returns whether there are some.
bool MemoryActuator::pin_unequal(const Run& run) {
  if (blocks_.followed() == nullptr) return false;
  const Actions recompute(blocks_.size(), MemoryAction::recompute);
  const GradientPrints all = run(recompute);
  std::vector<BlockId> unequal;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Actions one_kept = recompute;
    one_kept[b] = MemoryAction::keep;
    if (spread_.first_unlike(run(one_kept), all))
      unequal.push_back(BlockId(static_cast<BlockId::rep>(b)));
  }
  for (const BlockId block : unequal)
    blocks_.visits()->parts().steering.pin(block, "recomputed, it gave other gradients than kept");
  return !unequal.empty();
}

// Treats gradients as a step of this job will.
Result<MemoryProblem> MemoryActuator::measure_sample(const SampleStep& sample,
                                                     CalibrationHost& host) {
  const GradientHolding held = holders_.held(sample.micro_batches);
  TrialStep step(sample.model, sample.loss, held.released);
  std::function<Result<std::int64_t>(const Actions&)> other_peak;
  if (!sample.other_losses.empty())
    other_peak = [&](const Actions& actions) { return peak_of_others(sample, actions, host); };
  const auto forget_run = [&] {
    host.forget_run();
    if (sample.release) sample.release();
  };
  return measure(step, sample.resident_later_bytes + held.resident_bytes, forget_run,
                 std::move(other_peak));
}

Result<std::int64_t> MemoryActuator::peak_of_others(const SampleStep& sample,
                                                    const Actions& actions, CalibrationHost& host) {
  std::int64_t most = 0;
  for (const std::function<at::Tensor()>& loss : sample.other_losses) {
    steer(actions);
    if (offloader_) offloader_->begin_step();
    host.forget_run();
    if (sample.release) sample.release();
    TrialStep step(sample.model, loss);
    probe_.memory().reset_peak();
    const Status ran = step.run();
    most = std::max(most, probe_.memory().count().peak_bytes);
    blocks_.visits()->forget_step();
    if (!ran.ok()) return ran;
  }
  return most;
}

void MemoryActuator::start_from(const std::vector<planner::RankProblem>& problems,
                                CalibrationHost& host) {
  if (rank_ == kRoot) {
    keep_profile(problems);
    auto known = planner::memory_facts(problems, blocks_.size());
    if (known.ok()) {
      host.facts().memory = std::move(*known);
    } else {
      log_.warning(known.status().message());
    }
  }
  Status possible;
  const bool observes = config_.mode == PolicyMode::observe;
  for (const Reason& reason : host.learn()) {
    if (reason.code != ReasonCode::memory_infeasible || observes) continue;
    possible = invalid_argument(reason.text, explain_peak(problems, host.facts().memory));
  }
  host.agree(possible);
}

// "; at that peak: ..." of the first rank whose budget cannot be met, which is the one that the
// policy speaks of.
std::string MemoryActuator::explain_peak(const std::vector<planner::RankProblem>& problems,
                                         const MemoryFacts& facts) const {
  for (std::size_t r = 0; r < facts.model_of_rank.size(); ++r) {
    const MemoryModel& model = facts.models[facts.model_of_rank[r]];
    RankMemory rank;
    rank.rank = RankId(static_cast<std::int32_t>(r));
    rank.limit_bytes = facts.limit_bytes[r];
    rank.keep_bytes = model.front.back().peak_bytes;
    const bool is_met = budget_of(config_, rank).bytes >= model.front.front().peak_bytes;
    if (is_met || problems[r].problem.stages.empty()) continue;
    return "; " + planner::least_peak_text(problems[r].problem, model, blocks_.names());
  }
  return {};
}

// Writes the profile for `cox plan`, beside the record of the run.
void MemoryActuator::keep_profile(const std::vector<planner::RankProblem>& problems) const {
  if (run_directory_.empty()) return;
  const auto file = std::filesystem::path(run_directory_) / "memory_profile.json";
  const Status kept =
      io::replace_file(file, io::to_json(planner::profile_of(problems, blocks_.names())));
  if (!kept.ok()) log_.warning(kept.message());
}

}  // namespace cox::detail
