// Measures Coxswain's calls on the training thread: closing a step and opening the next one, timed
// and counted alone, in a watching loop and in real training steps.
#include "tests/bench/c2_calls.h"

#include <torch/torch.h>

#include <chrono>
#include <numeric>
#include <optional>

#include "coordinator/transport/wait.h"
#include "coxswain/reducer.h"
#include "sdk/src/session/session_state.h"
#include "tests/bench/allocation_count.h"
#include "tests/bench/line.h"
#include "tests/bench/small_gpt.h"

namespace cox::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmup = 40;  // the first steps measure blocks and size buffers

struct Calls {
  std::vector<double> microseconds;
  double allocations = 0;
};

// Closes the open step and opens the next.
class StepBoundary {
 public:
  explicit StepBoundary(Session& session) : session_(session) { scope_.emplace(session.step()); }

  StepScope& scope() { return *scope_; }
  void cross(Calls& calls, bool counts) {
    const AllocationCount count;
    const auto start = Clock::now();
    scope_.reset();
    scope_.emplace(session_.step());
    const auto spent = Clock::now() - start;
    const long allocations = count.so_far();
    if (!counts) return;
    calls.microseconds.push_back(std::chrono::duration<double, std::micro>(spent).count());
    calls.allocations += static_cast<double>(allocations);
  }

 private:
  Session& session_;
  std::optional<StepScope> scope_;
};

void work_for(std::chrono::microseconds time) {
  const auto until = Clock::now() + time;
  while (Clock::now() < until) {
  }
}

Calls watch(Session& session, int steps) {
  Calls calls;
  StepBoundary boundary(session);
  for (int i = 0; i < kWarmup + steps; ++i) {
    boundary.scope().loss(1.0, 1);
    work_for(std::chrono::microseconds(500));
    boundary.cross(calls, i >= kWarmup);
  }
  return calls;
}

Calls train(Session& session, int steps) {
  Calls calls;
  Trained trained = make_trained();
  Reducer reducer(session, *trained.model);
  const RandomBytes dataset(1024);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(kSequences));
  std::iota(indices.begin(), indices.end(), session.rank() * kSequences);
  StepBoundary boundary(session);
  for (int i = 0; i < kWarmup + steps; ++i) {
    const Batch batch = dataset.get(indices);
    const at::Tensor loss = trained.model->loss(batch.inputs, batch.targets);
    reducer.backward(boundary.scope(), loss, static_cast<double>(kSequences));
    if (reducer.average(boundary.scope()).finite) trained.optimizer.step();
    trained.optimizer.zero_grad();
    boundary.cross(calls, i >= kWarmup);
  }
  session.detach(*trained.model);
  return calls;
}

// Prints, on rank 0, the figures of the worst rank.
void tell(Session& session, const Calls& calls, const CallsTold& told) {
  std::array<double, 3> mine = {quantile(calls.microseconds, 0.5),
                                quantile(calls.microseconds, 0.99), calls.allocations};
  auto& ranks = session.state().job().data();
  std::vector<double> all(3 * static_cast<std::size_t>(session.world_size()));
  const Status gathered =
      transport::finish(ranks,
                        ranks.start_gather(std::as_bytes(std::span(mine)),
                                           std::as_writable_bytes(std::span(all)), kRoot),
                        session.state().job().world().wait_policy());
  if (!gathered.ok() || session.rank() != 0) return;
  std::array<double, 3> worst{};
  for (std::size_t i = 0; i < all.size(); ++i) worst[i % 3] = std::max(worst[i % 3], all[i]);
  const double steps = static_cast<double>(calls.microseconds.size());
  const auto print = [&](Line line, const char* figure) {
    line.with("figure", figure).with("where", told.where).with("ranks", session.world_size());
    line.with("control", told.path).with("steps", steps).with("worst_of", "ranks").print();
  };
  print(Line("C2", worst[0], "us").limit(told.limit_us), "closing and opening a step, p50");
  print(Line("C2", worst[1], "us"), "closing and opening a step, p99");
  print(Line("C2", worst[2] / steps, "allocations a step").limit(0),
        "heap allocations of the training thread in these calls");
}

}  // namespace

void measure_calls(Session& session, Workload workload, const CallsTold& told, Effort effort) {
  const bool is_quick = effort == Effort::quick;
  const Calls calls = workload == Workload::watching ? watch(session, is_quick ? 500 : 5000)
                                                     : train(session, is_quick ? 20 : 200);
  tell(session, calls, told);
}

}  // namespace cox::bench
