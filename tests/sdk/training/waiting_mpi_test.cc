// Waits of ranks for each other: one rank is slow by a known time, and the others' communication
// must show it. Compares shares of time, by the median of several steps, so that a busy machine
// changes nothing.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "coxswain/manual.h"
#include "coxswain/reducer.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

constexpr int kSteps = 7;
constexpr int kSlow = 1;  // the slow rank
constexpr std::chrono::milliseconds kDelay{60};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Computes for so much CPU time, whatever other programs do.
void compute(double seconds) {
  const double end = thread_seconds() + seconds;
  while (thread_seconds() < end) {
  }
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
}

// The reports of a rank's steps.
struct Told {
  std::vector<double> waiting, communication, own_communication, data, forward;
  bool is_measured = true;

  void add(const cox::detail::StepReport& report) {
    const auto phase = [&](Phase p) { return report.phase_seconds[static_cast<std::size_t>(p)]; };
    const double calls = phase(Phase::communication);
    is_measured = is_measured && report.has(SignalFlag::waiting_measured);
    CHECK(report.waiting_seconds >= 0);
    CHECK(report.waiting_seconds <= calls);
    double sum = -phase(Phase::host);  // outside the step
    for (const double seconds : report.phase_seconds) sum += seconds;
    CHECK(sum == doctest::Approx(report.wall_seconds).epsilon(1e-6));
    waiting.push_back(report.waiting_seconds);
    communication.push_back(calls);
    own_communication.push_back(calls - report.waiting_seconds);
    data.push_back(phase(Phase::data));
    forward.push_back(phase(Phase::forward));
  }
};

// Records every step that ends.
class Noting final : public cox::detail::Actuator, public cox::detail::Reporting {
 public:
  explicit Noting(Session& session)
      : recorder_(session.state().recorder()), added_(session.state().actuators(), *this) {}

  void end_step(const cox::detail::StepEnd&, cox::detail::StepOutput&) override {
    told.add(recorder_.report());
  }

  Told told;

 private:
  const cox::detail::StepRecorder& recorder_;
  const cox::detail::AddedActuator<Noting> added_;
};

struct Medians {
  double waiting = 0, own_communication = 0, data = 0, forward = 0;
};

std::vector<Medians> medians_of_all(Session& session, const Told& told) {
  CHECK(told.is_measured);
  const Medians mine{median(told.waiting), median(told.own_communication), median(told.data),
                     median(told.forward)};
  const auto all = cox::detail::gather_values(session.state().job().data(), mine);
  REQUIRE(all.ok());
  return *all;
}

at::Tensor some_parameter() {
  return torch::ones({64}).set_requires_grad(true);
}

using Work = std::function<void(StepScope& step, bool is_slow)>;

Told train_with_reducer(Session& session, const Work& before, const Work& in_forward) {
  const at::Tensor parameter = some_parameter();
  Reducer reducer(session, {parameter});
  Noting noting(session);
  for (int i = 0; i < kSteps; ++i) {
    auto step = session.step();
    const bool is_slow = session.rank() == kSlow;
    before(step, is_slow);
    {
      const auto phase = step.phase(Phase::forward);
      in_forward(step, is_slow);
    }
    parameter.mutable_grad().reset();
    reducer.backward(step, parameter.sum(), 1);
    (void)reducer.average(step);
  }
  return noting.told;
}

void nothing(StepScope&, bool) {}

void sleep_in_data(StepScope& step, bool is_slow) {
  const auto phase = step.phase(Phase::data);
  if (is_slow) std::this_thread::sleep_for(kDelay);
}

void delay_communication(StepScope& step, bool is_slow) {
  const auto phase = step.phase(Phase::communication);
  if (is_slow) std::this_thread::sleep_for(kDelay);
}

void check_that_others_wait_for_the_sleeper(const std::vector<Medians>& all) {
  const double slept = all[kSlow].data;
  CHECK(slept >= Seconds(kDelay).count());
  CHECK(all[kSlow].waiting < slept / 2);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (rank == kSlow) continue;
    CAPTURE(rank);
    CHECK(all[rank].waiting > slept / 2);
    CHECK(all[rank].data < slept / 2);
  }
}

}  // namespace

TEST_SUITE("waiting") {
  TEST_CASE("the others wait for a rank that sleeps in data, and it waits for nobody") {
    auto session = solo_session();
    const Told told = train_with_reducer(session, sleep_in_data, nothing);
    check_that_others_wait_for_the_sleeper(medians_of_all(session, told));
  }

  TEST_CASE("in a loop with ManualParallel they wait alike, at its first call") {
    auto session = solo_session();
    const at::Tensor parameter = some_parameter();
    ManualParallel ranks(session);
    ranks.sync_parameters({parameter});
    Noting noting(session);
    for (int i = 0; i < kSteps; ++i) {
      auto step = session.step();
      sleep_in_data(step, session.rank() == kSlow);
      parameter.mutable_grad() = torch::ones({64});
      (void)ranks.all_reduce_gradients(step, {parameter});
      (void)ranks.close(step);
    }
    check_that_others_wait_for_the_sleeper(medians_of_all(session, noting.told));
  }

  TEST_CASE("in an adopted loop they wait alike, at the end of the step that got the data") {
    auto session = solo_session();
    torch::nn::Linear model(4, 4);
    session.adopt(*model);
    torch::optim::SGD optimizer(model->parameters(), 0.01);
    Noting noting(session);
    for (int i = 0; i <= kSteps; ++i) {
      if (session.rank() == kSlow) std::this_thread::sleep_for(kDelay);
      optimizer.zero_grad();
      model->forward(torch::ones({2, 4})).sum().backward();
      optimizer.step();
    }
    check_that_others_wait_for_the_sleeper(medians_of_all(session, noting.told));
  }

  TEST_CASE("the others wait for a rank that computes three times as much") {
    auto session = solo_session();
    const Told told = train_with_reducer(
        session, nothing, [](StepScope&, bool is_slow) { compute(is_slow ? 0.06 : 0.02); });
    const auto all = medians_of_all(session, told);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (rank == kSlow) continue;
      CAPTURE(rank);
      CHECK(all[kSlow].forward > 1.5 * all[rank].forward);
      CHECK(all[rank].waiting > all[kSlow].waiting);
    }
  }

  TEST_CASE("a rank whose communication is slow has it as its own; for the others it is waiting") {
    auto session = solo_session();
    const Told told = train_with_reducer(session, delay_communication, nothing);
    const auto all = medians_of_all(session, told);
    const double delay = Seconds(kDelay).count();
    CHECK(all[kSlow].own_communication > delay / 2);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (rank == kSlow) continue;
      CAPTURE(rank);
      CHECK(all[rank].waiting > delay / 2);
      CHECK(all[rank].own_communication < delay / 2);
    }
  }

  TEST_CASE("a rank without steps left that joins has waiting, too") {
    auto session = solo_session();
    const at::Tensor parameter = some_parameter();
    Reducer reducer(session, {parameter});
    Noting noting(session);
    if (session.rank() == kSlow) {
      for (int i = 0; i < kSteps; ++i) {
        auto step = session.step();
        sleep_in_data(step, true);
        parameter.mutable_grad().reset();
        reducer.backward(step, parameter.sum(), 1);
        (void)reducer.average(step);
      }
    }
    reducer.join([](StepScope&, const ReductionOutcome&) {});
    check_that_others_wait_for_the_sleeper(medians_of_all(session, noting.told));
  }
}
