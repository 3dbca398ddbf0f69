// Session is a program's membership in a job. A session finds the ranks (MPI under mpiexec,
// otherwise this process alone) and reads the configuration. On rank 0 the session also hosts the
// coordinator and the HTTP server. The program opens steps. The first of three depths of use
// (docs/watching.md), which only watches:
//
//   auto session = cox::Session::start(argc, argv);
//   for (...) {
//     auto step = session.step();       // closed and reported where its scope ends
//     { auto forward = step.phase(cox::Phase::forward); loss = model->forward(x); }
//     step.loss(loss.item<double>(), batch_size);
//     if (session.stop_requested()) break;
//   }
//   session.finish();
//
// Thread rule: only the training thread of a rank uses the session, and only this thread calls MPI.
// Handlers for SIGTERM and SIGINT are installed when a Reducer or Trainer starts, or when the loop
// first calls stop_requested(). A Session is cheap to move. The state lives until the last Session,
// StepScope, Reducer or Trainer is gone.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/plan.h"
#include "coordinator/decide/effects.h"
#include "coordinator/decide/policy.h"
#include "coordinator/decide/policy_score.h"
#include "coxswain/error.h"

namespace at {
class Tensor;
}  // namespace at
namespace c10 {
struct Device;
}

namespace prometheus {
class Collectable;
}

namespace torch::data::samplers {
template <typename BatchRequest>
class Sampler;
}
namespace torch::nn {
class Module;
}
namespace torch::optim {
class LRScheduler;
class Optimizer;
class ReduceLROnPlateauScheduler;
}  // namespace torch::optim
namespace torch::jit {
struct Module;
}

namespace cox {

class AdamW;
class Session;
struct TrainingPart;

namespace detail {
class Adoption;
struct Capabilities;
class LoopKeeper;
class SessionState;
Session session_of(std::shared_ptr<SessionState> state, const Capabilities& capabilities);
}  // namespace detail

// ClosureOptimizer says whether a loop's optimizer calls a closure, as torch::optim::LBFGS does.
// Such an optimizer calls the closure as often as the returned losses require.
enum class ClosureOptimizer : std::uint8_t { no, yes };

struct AdoptOptions {
  std::string name{};  // prefix of the names of the model's blocks; for several models in one loop
  // Modules that become blocks, as paths in the model; '*' stands for any text ("layers.*"). Empty
  // = the elements of the largest container of equal modules, or else the model's children. The
  // setting blocks.modules, if present, overrides this list.
  std::vector<std::string> blocks{};
  // With `yes`, every backward() also replaces its loss by the mean over ranks. An optimizer that
  // reads losses then decides the same on all ranks; without `yes` such an optimizer makes the
  // ranks diverge. With several models, one `yes` is enough.
  ClosureOptimizer closure_optimizer = ClosureOptimizer::no;
  // True: only finds and measures steps, phases and blocks. Sends no weights, averages no
  // gradients, and keeps no budget or format. Ranks may be any number of steps apart. For loops
  // that average by themselves, or not at all. REQUIRES: all models of a loop have the same value.
  bool only_watch = false;
};

// TorchSampler is the base of torch's samplers of single samples: RandomSampler, SequentialSampler
// and the distributed ones.
using TorchSampler = torch::data::samplers::Sampler<std::vector<std::size_t>>;

// KeptOptimizer is an optimizer that Session::keep() saves: torch's or cox::AdamW.
class KeptOptimizer {
 public:
  using Held = std::variant<torch::optim::Optimizer*, AdamW*>;
  KeptOptimizer(torch::optim::Optimizer& optimizer) : held_(&optimizer) {}
  KeptOptimizer(AdamW& optimizer) : held_(&optimizer) {}
  const Held& held() const { return held_; }

 private:
  Held held_;
};

// KeptCounter is a counter of the loop that Session::keep() saves and sets. The counter may have
// any integer type.
class KeptCounter {
 public:
  template <std::integral Number>
  KeptCounter(Number& number)
      : number_(&number),
        get_([](const void* at) {
          return static_cast<std::int64_t>(*static_cast<const Number*>(at));
        }),
        set_([](void* at, std::int64_t value) {
          *static_cast<Number*>(at) = static_cast<Number>(value);
          return std::in_range<Number>(value);
        }) {}
  std::int64_t get() const { return get_(number_); }
  // Returns whether the counter's type can hold the value.
  bool set(std::int64_t value) const { return set_(number_, value); }

 private:
  void* number_;
  std::int64_t (*get_)(const void* number);
  bool (*set_)(void* number, std::int64_t value);
};

struct SessionOptions {
  Config config{};       // the program's own settings; file, environment and flags override them
  PolicySet policies{};  // run after the built-in ones
  std::string program = "trainer";  // for run.json
};

// PhaseScope books the time from its construction to its destruction on one phase of the open step.
// Phases nest; the time of an inner phase is not counted twice.
class [[nodiscard]] PhaseScope {
 public:
  PhaseScope(detail::SessionState& state, Phase phase);
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
  ~PhaseScope();

 private:
  detail::SessionState& state_;
};

// StepScope is one step of this rank. The destructor closes the step and hands the report to the
// coordinator. Closing takes some tens of microseconds in a training step, a hundred over MPI
// (docs/results/C2.md). The destructor never waits and never throws.
class [[nodiscard]] StepScope {
 public:
  explicit StepScope(std::shared_ptr<detail::SessionState> state);
  StepScope(StepScope&&) noexcept = default;
  StepScope& operator=(StepScope&&) = delete;
  ~StepScope();

  std::uint64_t number() const;  // counts from 0; goes back after a rollback
  PhaseScope phase(Phase phase);

  // Reports this rank's mean loss over `weight` samples (or tokens) of the step. May be called for
  // several micro-batches. The step's loss is the mean over all calls, by weight. A loss that is
  // NaN or infinite is counted and reported, unless its weight is 0. REQUIRES: weight >= 0.
  void loss(double mean, double weight = 1);
  // Adds the samples or tokens that this rank worked on in the step.
  void samples(std::uint64_t count);
  void tokens(std::uint64_t count);
  void gradient_norm(double value);  // L2, over all parameters; the last call counts
  // Adds a scalar of your own to the step's row in the run directory. At most 8 names a step are
  // kept; names must differ in their first 15 bytes. The names "loss" and "grad_norm" are ignored
  // in a step that already has a loss or gradient norm.
  void log(std::string_view name, double value);

 private:
  friend class Reducer;
  std::shared_ptr<detail::SessionState> state_;
};

// ReportedFinding is one loss of time in the newest steps of the run, with its cause and a remedy.
struct ReportedFinding {
  std::string code;      // "DIST.STRAGGLER"; docs/diagnosis.md lists all
  std::string severity;  // "high", "med" or "low"
  std::string title;
  std::string detail;
  std::string suggestion;
  double cost_seconds = 0;  // seconds that the remedy saves; 0 = unknown
  double cost_share = 0;    // cost_seconds / time of the steps
};

// SessionReport summarises the run so far, as the coordinator saw the run.
struct SessionReport {
  std::uint64_t rounds = 0;
  std::uint64_t plans = 0;      // published
  std::uint64_t decisions = 0;  // reasons given, also for leaving a knob unchanged
  std::string last_reason;
  int slowest_rank = 0;
  double slowdown_ratio = 1;  // the slowest rank's own work over the fastest rank's
  Phase slowest_phase = Phase::other;

  // The newest changes and slow ranks, oldest first, each with its prediction and its measurement.
  EffectList effects;
  std::vector<PolicyScore> scores;  // for each policy, the sum of its effects

  std::vector<ReportedFinding> findings;  // in the newest steps, the most costly first

  // Activation memory under the newest plan, predicted from measurements before the first step. All
  // zero if memory is not planned.
  bool memory_planned = false;
  std::int64_t memory_peak_bytes = 0;   // highest of all ranks
  std::int64_t memory_saved_bytes = 0;  // against keeping every block; the largest of all ranks
  double memory_added_ratio = 0;  // added time / a step's with every block kept; the largest of all
                                  // ranks
  std::int64_t memory_measured_bytes = 0;  // highest peak that a rank reported, under all plans

  // In the unit of run.price_per_device_hour, one device a rank. Zero without a price.
  double cost = 0;                // from the start of the job to the newest round
  double memory_cost_hourly = 0;  // price of the time that the plan adds, all ranks
};

class Session {
 public:
  // Collective and blocking. Removes `--cox.*` flags from the arguments. Throws cox::Error if a
  // setting is wrong, ranks disagree on the configuration, or MPI is not MPICH.
  static Session start(int argc, const char* const* argv, SessionOptions options = {});

  int rank() const;
  int world_size() const;
  // Returns the device that this rank trains on, also the thread's current device. run.device and
  // the machine decide: the rank's number on its node selects one of the CUDA devices that the rank
  // sees. Create the model on this device, or move it there, before the Reducer or Trainer. A
  // Trainer moves batches to the device of the model's parameters.
  c10::Device device() const;
  const Config& config() const;
  const std::vector<std::string>& arguments() const;  // left by start(), without argv[0]

  // Lets a model and its training loop take part without a change to either:
  //
  //   session.adopt(*model);
  //   for (...) { optimizer.zero_grad(); loss(model(x), y).backward(); optimizer.step(); }
  //
  // All ranks get rank 0's parameters and buffers. From then on every backward() leaves the plain
  // mean over ranks in .grad, also if several calls add up before an update. torch::autograd::grad
  // averages nothing. SIGTERM on any rank ends the job at the end of a step, unless the loop calls
  // stop_requested(). REQUIRES: every rank runs the same number of steps with batches of equal
  // size.
  //
  // Steps and phases are found automatically: a step ends at the first forward pass after an
  // update. Each block's costs are measured. With a memory budget (memory.*) the first step keeps
  // everything and is recorded. Before the second step the recorded step is tried under each
  // action, and plans hold from the second step on. Number formats (precision.*) hold for the
  // blocks' products.
  //
  // AdoptOptions::only_watch records steps, phases and blocks, and nothing else.
  //
  // Call adopt() on the training thread, before the first step, once for each model of the loop.
  // The model must outlive the session or be given to detach(), which ends the adoption of all
  // models. Do not combine with step(), a Reducer or a Trainer. An adopted loop cannot skip an
  // update or share out samples (use a Trainer); keep() saves an adopted loop. Collective. Throws
  // cox::Error for a model without parameters.
  void adopt(torch::nn::Module& model, const AdoptOptions& options = {});
  // Like above, for a TorchScript module from torch::jit::load(). The module may end before the
  // session. With TorchScript's graph optimiser off (torch::jit::setGraphExecutorOptimize)
  // everything above holds. With the optimiser on, the script is averaged and measured, but gets no
  // memory actions and no number formats.
  void adopt(const torch::jit::Module& model, const AdoptOptions& options = {});

  // Saves an adopted loop and resumes from its newest save, by the settings checkpoint.*. Call
  // keep() in the first line of the loop's body:
  //
  //   std::int64_t epoch = 0, batch = 0;
  //   for (; epoch < epochs; ++epoch, batch = 0) {
  //     for (; batch < batches; ++batch) {
  //       session.keep(optimizer, epoch, batch);
  //       optimizer.zero_grad(); loss(model(x(epoch, batch)), y).backward(); optimizer.step();
  //
  // With checkpoint.resume the first call sets both counters to those of the save. The call also
  // restores models, buffers, optimizers, each rank's random numbers and the states of add_state().
  // Saves are made only in later calls: every checkpoint.every_steps updates, and before the job
  // ends on a request. A call between backward() and the update saves nothing.
  //
  // A loop whose batches follow from its counters, its samplers and random numbers continues with
  // the same bits; docs/checkpoints.md lists the rest of a loop's state. For several optimizers,
  // call keep({generator, critic}, epoch, batch). Collective. Throws cox::Error on all ranks
  // without an adopted model, and in the same cases as a Trainer that resumes.
  void keep(KeptOptimizer optimizer, KeptCounter epoch, KeptCounter batch);
  void keep(const std::vector<KeptOptimizer>& optimizers, KeptCounter epoch, KeptCounter batch);
  // Lets keep() save and restore more: state of the program's own, a learning-rate schedule or a
  // torch sampler. The state must outlive the session. Each rank keeps its own position in a
  // sampler; all other state is rank 0's. A schedule that derives from LRScheduler and remembers
  // more than its number of steps is state of the program's own. Call add_state() after adopt() and
  // before the first keep(). Collective the first time. Throws cox::Error for a name that is taken.
  void add_state(std::string_view name, TrainingPart part);
  void add_state(std::string_view name, torch::optim::LRScheduler& schedule);
  void add_state(std::string_view name, torch::optim::ReduceLROnPlateauScheduler& schedule);
  void add_state(std::string_view name, TorchSampler& sampler);

  // Returns the open step of an adopted loop, or null. A step is open from a forward pass to the
  // first forward pass after an update. Through the step the loop reports facts that cannot be
  // found automatically, such as its loss, samples, or the time of its own communication:
  //   if (cox::StepScope* step = session.open_step()) step->loss(loss.item<double>(), batch_size);
  // The pointer is valid until the next forward pass. Local.
  StepScope* open_step();

  // Removes a model from the session: an adopted one, or one given to a Reducer, ManualParallel or
  // Trainer. The model is no longer measured and steered, and may end before the session.
  void detach(torch::nn::Module& model);
  void detach(const torch::jit::Module& model);

  // Measures the costs of formats and memory actions in a loop of your own. For settings that ask
  // for a memory budget (memory.*) or leave the number formats open (precision.format=auto); a
  // Trainer calibrates by itself. Does nothing if the settings leave no choice. `sample_loss`
  // computes the mean loss of a typical batch. calibrate() runs forward and backward several times
  // in every format and under every memory action. Then calibrate() restores gradients, buffers and
  // random numbers, and starts from the resulting plan. `optimizer_bytes` counts state that the
  // optimizer has not made yet, and also the gradients if steps add up several micro-batches.
  //
  // Call calibrate() after the Reducer was made, before the first step, while no parameter has a
  // gradient. Collective. Throws cox::Error on all ranks if a budget cannot be met, and if the
  // settings need calibration but no Reducer was made or the first step has begun.
  void calibrate(torch::nn::Module& model, const std::function<at::Tensor()>& sample_loss,
                 std::int64_t optimizer_bytes = 0);

  // Opens the next step. The session begins with the first step, or with the Reducer or Trainer if
  // one is made before. The call that begins the session is collective and starts the coordinator
  // and its server. The same call throws cox::Error on all ranks if the port is taken or the run
  // directory cannot be used. Later calls do not communicate. Throws cox::Error while a step of
  // this rank is open.
  StepScope step();

  // Returns the plan in force, which is valid until the next step is opened. Throws cox::Error
  // before the session has begun.
  const Plan& plan() const;

  // Requests a number format while the job trains. A request on any one rank reaches the
  // coordinator with the rank's next report. A plan with its reason follows some rounds later
  // (policy precision must be on). `block` is the name of a block, or "*" for all. The request
  // holds for `rounds` rounds, or for 0 until release_precision(), which ends requests of both
  // kinds. Local. Throws cox::Error for an unknown block, and for a format that cannot run here.
  void force_precision(std::string_view block, Precision format, std::uint32_t rounds = 0);
  void forbid_precision(std::string_view block, Precision format, std::uint32_t rounds = 0);
  void release_precision(std::string_view block);

  // Runs `work` (reading a file, say) on every rank. If `work` throws on any rank, throws the same
  // cox::Error on all ranks. Collective.
  void together(const std::function<void()>& work);

  // Returns whether SIGTERM or SIGINT has reached this rank, or a reducer agreed on another rank's
  // request. Ranks see a request at different times, so a loop with a reducer leaves by
  // ReductionOutcome::stop instead, which is equal on all ranks. In the loop of an adopted model
  // the answer is equal on all ranks.
  bool stop_requested() const;
  // Returns whether stop_requested() is true on any rank: the same answer on all ranks. Collective.
  bool stop_requested_anywhere();

  // Returns "http://127.0.0.1:9464/status" on rank 0 if the server is on and the session has begun,
  // otherwise an empty string.
  std::string status_address() const;

  // Returns the contents of /metrics on rank 0 once the session has begun, and null elsewhere. For
  // a program that has its own prometheus-cpp Exposer or Gateway:
  // exposer.RegisterCollectable(session.metrics()). After the session the last figures remain.
  std::shared_ptr<prometheus::Collectable> metrics() const;

  // Returns the run so far on rank 0, as of a moment ago, and an empty report on other ranks.
  // Local. Analyses the steps since the last report for findings, which takes milliseconds, more
  // with many ranks.
  SessionReport report() const;

  // Reports that this rank has no more steps, waits (polling) until all ranks are done, and closes
  // files. Collective. The destructor of the last owner calls finish() unless the program did.
  //
  // While an exception is in flight the destructor does not wait for other ranks. If all ranks fail
  // together, the program continues. If only this rank fails, the program must end with an exit
  // code other than 0: call report() and leave main. The exit then ends the whole job.
  void finish();

  detail::SessionState& state() { return *state_; }
  const detail::Capabilities& capabilities() const { return *capabilities_; }

 private:
  detail::LoopKeeper& keeper();
  // Calls `add` with the adoption, which is created if there is none.
  void adopt_by(const AdoptOptions& options, const std::function<void(detail::Adoption&)>& add);

  friend Session detail::session_of(std::shared_ptr<detail::SessionState> state,
                                    const detail::Capabilities& capabilities);
  Session(std::shared_ptr<detail::SessionState> state,
          std::shared_ptr<const detail::Capabilities> capabilities)
      : state_(std::move(state)), capabilities_(std::move(capabilities)) {}
  std::shared_ptr<detail::SessionState> state_;
  std::shared_ptr<const detail::Capabilities> capabilities_;  // belongs to state_
  std::shared_ptr<detail::Adoption> adoption_;                // ends before the state does
  std::shared_ptr<detail::LoopKeeper> keeper_;                // ends before the state does
};

}  // namespace cox
