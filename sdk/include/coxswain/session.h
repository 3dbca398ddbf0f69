// Session is a program's membership in a job. It finds the ranks (MPI under mpiexec, otherwise this
// process alone), reads the configuration, hosts the coordinator and its HTTP server on rank 0, and
// hands out steps. First depth of use (watch only):
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
// Thread rule: one thread of a rank uses its session, the one that trains; MPI is called from there
// only. SIGTERM and SIGINT are taken over once a Reducer or Trainer has started, or the loop first
// asks for them (stop_requested()). A Session is cheap to move; its state lives until the last
// Session, StepScope, Reducer or Trainer is gone.
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

// Whether the optimizer of a loop takes a closure, which it calls as often as the losses that it
// returns ask for (torch::optim::LBFGS).
enum class ClosureOptimizer : std::uint8_t { no, yes };

struct AdoptOptions {
  std::string name{};  // stands before the names of its blocks; for several models in one loop
  // Modules that are to be blocks, as paths in the model; '*' stands for any text ("layers.*").
  // Empty = the elements of the largest container of equal modules, or else the model's children.
  // The setting blocks.modules, where it is given, counts instead.
  std::vector<std::string> blocks{};
  // With `yes` every backward() leaves the mean over ranks in the loss that it is called on, too,
  // so that an optimizer that looks at losses decides the same on all ranks. Without it such an
  // optimizer parts the ranks. Of several models one that says `yes` is enough.
  ClosureOptimizer closure_optimizer = ClosureOptimizer::no;
  // Steps, phases and blocks are found and measured, and nothing else happens: no weights are sent,
  // no gradients averaged, no budget or format kept, and ranks may be any number of steps apart.
  // For loops that average by themselves, or not at all. All models of a loop say the same.
  bool only_watch = false;
};

// TorchSampler is what torch's samplers of single samples are: RandomSampler, SequentialSampler and
// the distributed ones.
using TorchSampler = torch::data::samplers::Sampler<std::vector<std::size_t>>;

// KeptOptimizer is an optimizer that Session::keep() saves, of torch or ours.
class KeptOptimizer {
 public:
  using Held = std::variant<torch::optim::Optimizer*, AdamW*>;
  KeptOptimizer(torch::optim::Optimizer& optimizer) : held_(&optimizer) {}
  KeptOptimizer(AdamW& optimizer) : held_(&optimizer) {}
  const Held& held() const { return held_; }

 private:
  Held held_;
};

// KeptCounter is a counter of the loop's own that Session::keep() saves and sets, of any type of
// whole numbers.
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
  // Returns whether the counter's type has the value.
  bool set(std::int64_t value) const { return set_(number_, value); }

 private:
  void* number_;
  std::int64_t (*get_)(const void* number);
  bool (*set_)(void* number, std::int64_t value);
};

struct SessionOptions {
  Config config{};       // what the program sets itself; file, environment and flags override it
  PolicySet policies{};  // asked after the built-in ones
  std::string program = "trainer";  // for run.json
};

// PhaseScope books the time from its construction to its destruction on one phase of the open step.
// Phases nest; an inner one's time is not counted twice.
class [[nodiscard]] PhaseScope {
 public:
  PhaseScope(detail::SessionState& state, Phase phase);
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
  ~PhaseScope();

 private:
  detail::SessionState& state_;
};

// StepScope is one step of this rank. Its destructor closes the step and hands the report to the
// coordinator; that takes some tens of microseconds in a training step, a hundred over MPI
// (docs/results/C2.md), never waits and never throws.
class [[nodiscard]] StepScope {
 public:
  explicit StepScope(std::shared_ptr<detail::SessionState> state);
  StepScope(StepScope&&) noexcept = default;
  StepScope& operator=(StepScope&&) = delete;
  ~StepScope();

  std::uint64_t number() const;  // counts from 0; goes back after a rollback
  PhaseScope phase(Phase phase);

  // Reports this rank's mean loss over `weight` samples (or tokens) of the step, 0 or more. May be
  // called for several micro-batches. A loss that is NaN or infinite is counted and reported,
  // unless its weight is 0.
  void loss(double mean, double weight = 1);
  // Add the samples or tokens that this rank worked on in the step.
  void samples(std::uint64_t count);
  void tokens(std::uint64_t count);
  void gradient_norm(double value);  // L2, over all parameters; the last call counts
  // Adds a scalar of your own to the run directory: up to 8 names a step, which differ in their
  // first 15 bytes. "loss"
  // and "grad_norm" stand in for the step's own figures only where it has none.
  void log(std::string_view name, double value);

 private:
  friend class Reducer;
  std::shared_ptr<detail::SessionState> state_;
};

// ReportedFinding says what the newest steps of the run lost, why, and what to change.
struct ReportedFinding {
  std::string code;      // "DIST.STRAGGLER"; docs/diagnosis.md has all of them
  std::string severity;  // "high", "med" or "low"
  std::string title;
  std::string detail;
  std::string suggestion;
  double cost_seconds = 0;  // that mending it gives back; 0 = not known
  double cost_share = 0;    // the same, of the time that these steps took
};

// SessionReport summarises the run so far, as the coordinator saw it.
struct SessionReport {
  std::uint64_t rounds = 0;
  std::uint64_t plans = 0;      // published
  std::uint64_t decisions = 0;  // with a reason, those that changed nothing included
  std::string last_reason;
  int slowest_rank = 0;
  double slowdown_ratio = 1;  // its own work against the fastest rank's
  Phase slowest_phase = Phase::other;

  // The newest changes and slow ranks, oldest first, with what was predicted and measured of each.
  EffectList effects;
  std::vector<PolicyScore> scores;  // what these sum up to for each policy

  std::vector<ReportedFinding> findings;  // in the newest steps; what costs most first

  // Activation memory under the newest plan, as predicted by what was measured before the first
  // step. All zero where memory is not planned.
  bool memory_planned = false;
  std::int64_t memory_peak_bytes = 0;      // highest of a rank
  std::int64_t memory_saved_bytes = 0;     // on one rank, against keeping every block; the largest
  double memory_added_ratio = 0;           // of a step with every block kept; the largest of a rank
  std::int64_t memory_measured_bytes = 0;  // highest peak that a rank reported, of all plans

  // In the unit of run.price_per_device_hour, a device a rank; zero where no price is given.
  double cost = 0;                // from the start of the job to the newest round
  double memory_cost_hourly = 0;  // of the time that the plan adds, all ranks
};

class Session {
 public:
  // Collective and blocking. Takes `--cox.*` flags out of the arguments. Throws cox::Error when a
  // setting is wrong, ranks disagree on the configuration, or MPI is not MPICH.
  static Session start(int argc, const char* const* argv, SessionOptions options = {});

  int rank() const;
  int world_size() const;
  // Returns the device that this rank trains on, as run.device and the machine decide: the rank's
  // number on its node picks one of the CUDA devices that it sees. It is the thread's current one.
  // Make or move the model there before the Reducer or Trainer; a Trainer moves batches to wherever
  // the model's parameters are.
  c10::Device device() const;
  const Config& config() const;
  const std::vector<std::string>& arguments() const;  // what start() left over, without argv[0]

  // Lets a model and the loop that trains it take part as they are, without a change to either:
  //
  //   session.adopt(*model);
  //   for (...) { optimizer.zero_grad(); loss(model(x), y).backward(); optimizer.step(); }
  //
  // All ranks get rank 0's parameters and buffers. From here on every backward() leaves in .grad
  // the plain mean over ranks, also where several calls add up before an update;
  // torch::autograd::grad averages nothing. Steps and phases are found by themselves: a step ends
  // at the first forward pass after an update. What each block takes is measured. With a memory
  // budget (memory.*) the first step keeps everything and is recorded; before the second one it is
  // tried under each action, and plans hold from there on. Number formats (precision.*) hold for
  // the blocks' products. Every rank takes the same number of steps with batches of equal size.
  // SIGTERM on any rank ends the job at the end of a step, unless the loop asks stop_requested().
  //
  // With AdoptOptions::only_watch steps, phases and blocks are recorded, and that is all.
  //
  // Call it on the training thread, before the first step, once for each model of the loop; the
  // model must outlive the session or be given to detach(), which ends it for all models. Not
  // together with step(), a Reducer or a Trainer. What it cannot do in a loop that it
  // does not own: skip an update, share out samples (see Trainer); keep() saves it. Collective.
  // Throws cox::Error for a model without parameters.
  void adopt(torch::nn::Module& model, const AdoptOptions& options = {});
  // The same for a TorchScript module, as torch::jit::load() returns it; it may end before the
  // session. With TorchScript's graph optimiser off (torch::jit::setGraphExecutorOptimize) all of
  // the above holds; with it on the script is kept whole: averaged and measured, but without memory
  // actions and number formats.
  void adopt(const torch::jit::Module& model, const AdoptOptions& options = {});

  // Saves an adopted loop and lets it go on from its newest save, by the settings checkpoint.*.
  // Call it in the first line of the loop's body:
  //
  //   std::int64_t epoch = 0, batch = 0;
  //   for (; epoch < epochs; ++epoch, batch = 0) {
  //     for (; batch < batches; ++batch) {
  //       session.keep(optimizer, epoch, batch);
  //       optimizer.zero_grad(); loss(model(x(epoch, batch)), y).backward(); optimizer.step();
  //
  // With checkpoint.resume the first call sets both counters to those of the save, and restores
  // models, buffers, optimizers, each rank's random numbers and what add_state() named. Each later
  // call is the only place where a save is made: every checkpoint.every_steps updates, and before
  // the job ends because it was asked to stop. A call between backward() and the update saves
  // nothing. A loop whose batches follow from its counters, its samplers and random numbers goes on
  // with the bits that it would have had; docs/checkpoints.md says what else belongs to a loop.
  // Several optimizers: keep({generator, critic}, epoch, batch). Collective. Throws cox::Error on
  // all ranks without an adopted model, and as a Trainer does where it resumes.
  void keep(KeptOptimizer optimizer, KeptCounter epoch, KeptCounter batch);
  void keep(const std::vector<KeptOptimizer>& optimizers, KeptCounter epoch, KeptCounter batch);
  // Lets keep() save and restore more: state of the program's own, a learning-rate schedule or a
  // sampler of torch's, which must outlive the session. Each rank has its own place in a sampler;
  // the rest is rank 0's. A schedule that derives from LRScheduler and remembers more than the
  // number of its steps is state of the program's own. Call it after adopt() and before the first
  // keep(). Collective the first time. Throws cox::Error for a name that is taken.
  void add_state(std::string_view name, TrainingPart part);
  void add_state(std::string_view name, torch::optim::LRScheduler& schedule);
  void add_state(std::string_view name, torch::optim::ReduceLROnPlateauScheduler& schedule);
  void add_state(std::string_view name, TorchSampler& sampler);

  // Returns the step of an adopted loop that is open, from a forward pass to the first one after an
  // update, or null. It lets the loop tell what cannot be found, as its loss, samples, or the time
  // in which it communicates by itself:
  //   if (cox::StepScope* step = session.open_step()) step->loss(loss.item<double>(), batch_size);
  // Valid until the next forward pass. Local.
  StepScope* open_step();

  // Takes the model, adopted or given to a Reducer, ManualParallel or Trainer, out of the session:
  // it is no longer measured and steered, and may go before the session does.
  void detach(torch::nn::Module& model);
  void detach(const torch::jit::Module& model);

  // Measures what formats and memory actions cost in a loop of your own whose settings ask for a
  // memory budget (memory.*) or leave the number formats open (precision.format=auto); a Trainer
  // does this by itself. Runs `sample_loss`, the mean loss of a typical batch, forward and backward
  // several times in every format and under every memory action, puts gradients, buffers and random
  // numbers back, and starts from the plan that follows. `optimizer_bytes`: state that the
  // optimizer has not made yet, and the gradients where steps add up several micro-batches. Does
  // nothing where nothing is to be chosen. Call it after the Reducer was made, before the first
  // step, while no parameter has a gradient. Collective. Throws cox::Error on all ranks when a
  // budget cannot be met, or something is asked for without a Reducer or after the first step.
  void calibrate(torch::nn::Module& model, const std::function<at::Tensor()>& sample_loss,
                 std::int64_t optimizer_bytes = 0);

  // Opens the next step. The session begins with the first one, or with the Reducer or Trainer that
  // is made before it: that call is collective, starts the coordinator and its server, and throws
  // cox::Error on all ranks when the port is taken or the run directory cannot be used. Later ones
  // do not communicate. Throws cox::Error while a step of this rank is open.
  StepScope step();

  // Returns the plan in force, which is valid until the next step is opened. Throws cox::Error
  // before the session has begun.
  const Plan& plan() const;

  // Request a number format while the job trains. A request on any one rank reaches the coordinator
  // with that rank's next report, and a plan with its reason follows some rounds later (policy
  // precision must be on). `block`: the name of a block, or "*" for all. The request holds for
  // `rounds` rounds, 0 = until it is released; release ends requests of both kinds. Local. Throws
  // cox::Error for a block that does not exist and a format that cannot be run here.
  void force_precision(std::string_view block, Precision format, std::uint32_t rounds = 0);
  void forbid_precision(std::string_view block, Precision format, std::uint32_t rounds = 0);
  void release_precision(std::string_view block);

  // Runs `work` (reading a file, say) on every rank and throws the same cox::Error on all of them
  // when it threw anything on any. Collective.
  void together(const std::function<void()>& work);

  // Returns whether SIGTERM or SIGINT has reached this rank, or another rank and a reducer agreed
  // on it. Ranks learn of it at different times, so a loop with a reducer leaves by
  // ReductionOutcome::stop instead, which is equal on all ranks. In the loop of an adopted model it
  // is equal on all ranks.
  bool stop_requested() const;
  // Returns whether it is true on any rank; the same answer on all ranks. Collective.
  bool stop_requested_anywhere();

  // Returns "http://127.0.0.1:9464/status" on rank 0 when the server is on and the session has
  // begun, otherwise an empty string.
  std::string status_address() const;

  // Returns on rank 0, once the session has begun, what /metrics serves, for a program that has a
  // prometheus-cpp Exposer or Gateway of its own (exposer.RegisterCollectable(session.metrics()));
  // null elsewhere. After the session it keeps the last figures.
  std::shared_ptr<prometheus::Collectable> metrics() const;

  // Returns the run so far on rank 0, as of a moment ago; elsewhere all zero. Looks for findings
  // where there are steps that nobody has looked at: milliseconds, more with many ranks.
  SessionReport report() const;

  // Reports that this rank has no more steps, waits (polling) until all ranks are done, closes
  // files. Collective. Called by the destructor of the last owner if it was not called before.
  // While an exception is in flight that destructor leaves without waiting for the others: when all
  // ranks fail together the program goes on, when this one fails alone it has to end with an exit
  // code other than 0 (report() it and leave main), which ends the whole job.
  void finish();

  detail::SessionState& state() { return *state_; }
  const detail::Capabilities& capabilities() const { return *capabilities_; }

 private:
  detail::LoopKeeper& keeper();
  // With the adoption that takes a model in, made if there is none.
  void adopt_by(const AdoptOptions& options, const std::function<void(detail::Adoption&)>& add);

  friend Session detail::session_of(std::shared_ptr<detail::SessionState> state,
                                    const detail::Capabilities& capabilities);
  Session(std::shared_ptr<detail::SessionState> state,
          std::shared_ptr<const detail::Capabilities> capabilities)
      : state_(std::move(state)), capabilities_(std::move(capabilities)) {}
  std::shared_ptr<detail::SessionState> state_;
  std::shared_ptr<const detail::Capabilities> capabilities_;  // of that state
  std::shared_ptr<detail::Adoption> adoption_;                // ends before the state does
  std::shared_ptr<detail::LoopKeeper> keeper_;                // as that does
};

}  // namespace cox
