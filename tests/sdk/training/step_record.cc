#include "step_record.h"

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "coordinator/core/ballot.h"
#include "coordinator/core/text.h"
#include "coordinator/transport/communicator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"

namespace sdk_test {
namespace {

using cox::concat;
using cox::Result;
using cox::Status;
using cox::StepBallot;
using cox::transport::Buffers;
using cox::transport::Call;
using cox::transport::Communicator;
using cox::transport::Operation;
using cox::transport::Reduction;
using cox::transport::Request;

// Shared by both taps of a rank: the record, and the taps' knowledge of each other.
struct Shared {
  StepRecord record;
  std::uint64_t newest_round = 0;  // the newest round that ended here
  bool has_ended_one = false;
  bool tells_closed = true;
};

const char* kind_of(double value) {
  if (std::isnan(value)) return "nan";
  return std::isfinite(value) ? "finite" : "infinite";
}

std::string text_of(const StepBallot& ballot, std::int32_t rank, const Shared& shared) {
  std::string text = concat("ballot weight=", ballot.weight, " samples=", ballot.samples,
                            " loss=", kind_of(ballot.loss_sum), " active=", ballot.active_ranks,
                            " plan=", ballot.plan_held_min);
  if (shared.tells_closed) text += concat(" closed=", ballot.round_closed_min);
  if (ballot.nonfinite_ranks != 0) text += concat(" nonfinite=", ballot.nonfinite_ranks);
  if (ballot.overflow_ranks != 0) text += concat(" overflow=", ballot.overflow_ranks);
  if (ballot.buffers_from_min == static_cast<std::uint64_t>(rank)) text += " buffers";
  if (ballot.repeat_max != 0) text += " repeat";
  if (ballot.stop_max != 0) text += " stop";
  if (ballot.amax_max != 0) text += " amax";
  if (ballot.fingerprint_min != ballot.fingerprint_max) text += " unequal";
  return text;
}

// Records every call and passes the call to the communicator below. Names children after the parent
// and the order of creation. Denies the job's ranks shared memory for exchanges in steps (the
// second child of all ranks), so that these calls pass here, too.
class TappedCommunicator final : public Communicator {
 public:
  TappedCommunicator(std::unique_ptr<Communicator> below, std::shared_ptr<Shared> shared,
                     std::string name)
      : below_(std::move(below)), shared_(std::move(shared)), name_(std::move(name)) {}

  cox::RankId rank() const override { return below_->rank(); }
  std::int32_t size() const override { return below_->size(); }
  std::int32_t ranks_on_node() const override { return below_->ranks_on_node(); }
  const char* kind() const override { return below_->kind(); }
  Result<cox::transport::Progress> test(Request& request) override { return below_->test(request); }

  Result<std::unique_ptr<Communicator>> duplicate() override {
    note("duplicate");
    return child(below_->duplicate());
  }
  Result<std::unique_ptr<Communicator>> split_by_node() override {
    note("split_by_node");
    return child(below_->split_by_node());
  }

 protected:
  Result<Request> start(const Call& call, const Buffers& buffers,
                        const Reduction& reduction) override {
    note(text_of(call, buffers));
    switch (call.operation) {
      case Operation::gather:
        return below_->start_gather(buffers.send, buffers.receive, call.root);
      case Operation::broadcast:
        return below_->start_broadcast(buffers.receive, call.root);
      case Operation::all_gather:
        return below_->start_all_gather(buffers.send, buffers.receive);
      case Operation::reduce:
        return below_->start_reduce(buffers.receive, reduction, call.root);
      default:
        return below_->start_all_reduce(buffers.receive, reduction);
    }
  }
  Result<std::unique_ptr<Communicator>> part(std::int32_t color) override {
    note(concat("split ", color));
    return child(below_->split(color));
  }
  Result<cox::transport::SharedSegment> share(std::size_t bytes) override {
    note("shared_segment");
    if (name_.starts_with("ranks.1")) return cox::resource_exhausted("kept from it by the test");
    return below_->shared_segment(bytes);
  }

 private:
  void note(const std::string& text) const { shared_->record.note(name_ + ": " + text); }

  Result<std::unique_ptr<Communicator>> child(Result<std::unique_ptr<Communicator>> made) {
    if (!made.ok()) return made.status();
    const std::string name = concat(name_, ".", ++children_);
    return std::unique_ptr<Communicator>(
        std::make_unique<TappedCommunicator>(std::move(*made), shared_, name));
  }

  std::string text_of(const Call& call, const Buffers& buffers) const {
    const bool is_ballot = call.element_bytes == sizeof(StepBallot);
    if (!is_ballot) return cox::transport::describe(call);
    StepBallot ballot;
    std::memcpy(static_cast<void*>(&ballot), buffers.send.data(), sizeof(ballot));
    return sdk_test::text_of(ballot, Recording::rank(), *shared_);
  }

  std::unique_ptr<Communicator> below_;
  std::shared_ptr<Shared> shared_;
  const std::string name_;
  int children_ = 0;
};

// Precedes or follows the actuators of a session, and records all calls to them.
class TappedActuator final : public cox::detail::Actuator,
                             public cox::detail::Steering,
                             public cox::detail::Reporting,
                             public cox::detail::Saving {
 public:
  enum class Place { first, last };
  TappedActuator(std::shared_ptr<Shared> shared, Place place)
      : shared_(std::move(shared)), place_(place) {}

  Status prepare() override { return note("prepare"), cox::ok_status(); }
  void attach(torch::nn::Module&) override { note("attach"); }
  void release() override { note("release"); }
  Status check(cox::detail::LoopKind loop) override {
    note(loop == cox::detail::LoopKind::reducing ? "check reducing" : "check watching");
    return cox::ok_status();
  }
  Status negotiate(Communicator&) override { return note("negotiate"), cox::ok_status(); }
  void contribute(cox::JobFacts&) const override { note("contribute"); }
  void forget_run() override { note("forget_run"); }
  void restart_step() override { note("restart_step"); }
  void apply(const cox::Plan& plan, cox::RoundId round) override {
    note(concat("apply plan ", plan.id.number, " round ", ahead(round.value())));
  }
  void begin_step() override { note("begin_step"); }
  void end_step(const cox::detail::StepEnd& step, cox::detail::StepOutput& output) override {
    note(concat("end_step round ", ahead(step.round.value()), " step ", ahead(step.step.value()),
                " plan ", step.plan.id.number, " samples ", step.samples,
                output.row == nullptr ? "" : " row"));
    shared_->newest_round = step.round.value();
    shared_->has_ended_one = true;
  }
  void sign(cox::RankSignal& signal) const override { note(text_of(signal)); }
  // The tap saves nothing, but is called in the order of the others.
  const cox::detail::SavedRow* saved_row() const override { return note("saved_row"), nullptr; }
  std::vector<double> save() const override { return {}; }
  Status load(std::span<const double>) override { return cox::ok_status(); }

 private:
  void note(const std::string& text) const {
    shared_->record.note(concat(place_ == Place::first ? "first" : "last", " actuator: ", text));
  }

  // Writes rounds and steps relative to the record's step, so that equal steps have equal lines.
  std::string ahead(std::uint64_t number) const {
    const auto steps = static_cast<std::int64_t>(shared_->record.steps());
    return concat("n", static_cast<std::int64_t>(number) - steps);
  }

  std::string text_of(const cox::RankSignal& signal) const {
    using cox::SignalFlag;
    std::string text =
        concat("sign round ", ahead(signal.round.value()), " step ", ahead(signal.step.value()),
               " applied ", signal.plan_applied, " weight ", signal.weight, " samples ",
               signal.samples, " tokens ", signal.tokens, " loss ", kind_of(signal.loss), " norm ",
               kind_of(signal.gradient_norm), " scale ", signal.loss_scale, " nonfinite ",
               signal.nonfinite_values);
    const std::pair<SignalFlag, const char*> flags[] = {
        {SignalFlag::nonfinite_loss, "nonfinite_loss"},
        {SignalFlag::nonfinite_gradient, "nonfinite_gradient"},
        {SignalFlag::step_skipped, "step_skipped"},
        {SignalFlag::finished, "finished"},
        {SignalFlag::watching, "watching"},
        {SignalFlag::rolled_back, "rolled_back"},
        {SignalFlag::step_repeated, "step_repeated"},
        {SignalFlag::out_of_memory, "out_of_memory"},
        {SignalFlag::waiting_measured, "waiting_measured"}};
    for (const auto& [flag, name] : flags) {
      if (signal.has(flag)) text += concat(" ", name);
    }
    return text;
  }

  std::shared_ptr<Shared> shared_;
  const Place place_;
};

// Merges equal neighbouring lines into one with their number.
std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0, next = 0; i < lines.size(); i = next) {
    while (next < lines.size() && lines[next] == lines[i]) ++next;
    text += "  " + lines[i] + (next - i > 1 ? concat(" *", next - i) : "") + "\n";
  }
  return text;
}

// Returns "a", ..., "z", "aa", ...
std::string letter(std::size_t number) {
  const std::string last(1, static_cast<char>('a' + number % 26));
  return number < 26 ? last : letter(number / 26 - 1) + last;
}

}  // namespace

std::string StepRecord::text() const {
  std::map<std::string, std::string> letters;  // by a step's text
  std::string kinds, order, newest;
  int repeats = 0;
  const auto close = [&] {
    if (repeats > 0) order += " " + newest + (repeats > 1 ? concat("*", repeats) : "");
  };
  for (std::size_t s = 1; s + 1 < parts_.size(); ++s) {
    const std::string step = joined(parts_[s]);
    const auto [known, is_new] = letters.try_emplace(step, letter(letters.size()));
    if (is_new) kinds += "step " + known->second + "\n" + step;
    if (known->second != newest) {
      close();
      newest = known->second;
      repeats = 0;
    }
    ++repeats;
  }
  close();
  return "start\n" + joined(parts_.front()) + kinds + "order" + order + "\nend\n" +
         joined(parts_.back());
}

std::vector<std::string> StepRecord::calls() const {
  std::vector<std::string> calls;
  for (std::size_t s = 1; s + 1 < parts_.size(); ++s) {
    std::vector<std::string> lines = parts_[s];
    std::erase_if(lines, [](const std::string& line) {
      return !line.starts_with("ranks") || line.find(": ballot ") != line.npos;
    });
    calls.push_back(joined(lines));
  }
  return calls;
}

struct Recording::Taps {
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  cox::detail::SessionState* state = nullptr;  // the session's, after its start
  bool is_free = false;

  cox::runtime::ControlPlane& plane() const { return state->control().plane(); }

  // Waits until the coordinator has decided on the newest round. Returns the plan that followed.
  std::uint64_t decided_plan() const {
    for (;;) {
      const auto known = plane().state();
      const bool has_come = known && !known->history.empty() &&
                            known->history.rounds().back().round.value() >= shared->newest_round;
      if (has_come) return known->plan.id.number;
      plane().pump();
      std::this_thread::yield();
    }
  }

  void settle() const {
    while (!plane().round_closed()) {
      plane().pump();
      std::this_thread::yield();
    }
    std::uint64_t plan = state->job().is_root() ? decided_plan() : 0;
    MPI_Bcast(&plan, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    while (plane().plan_held() < plan) {
      plane().pump();
      std::this_thread::yield();
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
};

Recording::Recording() : taps_(std::make_unique<Taps>()) {}
Recording::~Recording() = default;

cox::Session Recording::start(const std::vector<std::string>& flags, cox::PolicySet policies) {
  std::vector<const char*> argv = {"test",
                                   "--cox.http.enabled=off",
                                   "--cox.run.log=quiet",
                                   "--cox.control.late_seconds=3600",
                                   "--cox.reduction.bucket_bytes=1KiB",
                                   "--cox.guard.mode=off",
                                   "--cox.stragglers.mode=off",
                                   "--cox.shares.mode=off",
                                   "--cox.precision.mode=off",
                                   "--cox.memory.mode=off"};
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  cox::SessionOptions options;
  options.policies = std::move(policies);
  const auto shared = taps_->shared;
  const auto add = [shared](cox::detail::ActuatorList& list, const cox::detail::Membership& job) {
    using Place = TappedActuator::Place;
    list.own(std::make_unique<TappedActuator>(shared, Place::first));
    const cox::detail::Capabilities capabilities = cox::detail::add_capabilities(list, job);
    list.own(std::make_unique<TappedActuator>(shared, Place::last));
    return capabilities;
  };
  const auto wrap = [shared](std::unique_ptr<Communicator> ranks) {
    return std::unique_ptr<Communicator>(
        std::make_unique<TappedCommunicator>(std::move(ranks), shared, "ranks"));
  };
  cox::Session session = cox::detail::start_session(static_cast<int>(argv.size()), argv.data(),
                                                    std::move(options), add, wrap);
  taps_->state = &session.state();
  return session;
}

void Recording::next_step() {
  if (!taps_->is_free && taps_->shared->has_ended_one) taps_->settle();
  taps_->shared->record.begin_part();
}

void Recording::note(std::string line) {
  taps_->shared->record.note(std::move(line));
}

void Recording::free_running() {
  taps_->is_free = true;
  taps_->shared->tells_closed = false;
}

void Recording::end() {
  next_step();
}

int Recording::rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int Recording::world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

std::vector<std::string> Recording::calls() const {
  return taps_->shared->record.calls();
}

std::string Recording::text_of_all() const {
  const std::string mine = taps_->shared->record.text();
  if (rank() != 0) {
    MPI_Send(mine.data(), static_cast<int>(mine.size()), MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    return {};
  }
  std::vector<std::string> all = {mine};
  for (int r = 1; r < world_size(); ++r) {
    MPI_Status status;
    MPI_Probe(r, 0, MPI_COMM_WORLD, &status);
    int count = 0;
    MPI_Get_count(&status, MPI_CHAR, &count);
    std::string& text = all.emplace_back(static_cast<std::size_t>(count), ' ');
    MPI_Recv(text.data(), count, MPI_CHAR, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  std::string text;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto same = static_cast<std::size_t>(std::ranges::find(all, all[r]) - all.begin());
    text += same == r ? concat("== rank ", r, "\n", all[r])
                      : concat("== rank ", r, " as rank ", same, "\n");
  }
  return text;
}

}  // namespace sdk_test
