// A capability unknown to the session. The actuator is called like all others.
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/session/saved_rows.h"
#include "sdk/src/session/session_state.h"
#include "solo.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

class Recorded final : public Actuator,
                       public Measuring,
                       public Steering,
                       public Reporting,
                       public Comparing,
                       public Saving {
 public:
  const char* name() const override { return "recorded"; }
  Status check(LoopKind loop) override {
    calls.push_back(loop == LoopKind::reducing ? "check reducing" : "check watching");
    return ok_status();
  }
  void contribute(JobFacts&) const override { ++contributed; }
  bool is_wanted() const override { return false; }
  std::string without() const override { return {}; }
  bool wants_calibration() const override { return true; }
  void calibrate(const SampleStep&, CalibrationHost& host) override {
    calls.push_back("calibrate");
    host.forget_run();
  }
  void forget_run() override { calls.push_back("forget_run"); }
  void restart_step() override { calls.push_back("restart_step"); }
  void apply(const Plan& plan, RoundId) override {
    calls.push_back("apply " + std::to_string(plan.id.number));
  }
  void begin_step() override { calls.push_back("begin_step"); }
  void end_step(const StepEnd& step, StepOutput& output) override {
    calls.push_back("end_step of rank " + std::to_string(step.rank.value()));
    CHECK(output.row == nullptr);  // without a run directory
  }
  EqualBits equal_bits() const override { return {}; }
  const SavedRow* saved_row() const override { return remembers ? &kRow : nullptr; }
  std::vector<double> save() const override { return memory; }
  Status load(std::span<const double> row) override {
    memory.assign(row.begin(), row.end());
    return ok_status();
  }

  static constexpr SavedRow kRow{"recorded", "what was recorded"};
  std::vector<std::string> calls;
  mutable int contributed = 0;
  bool remembers = false;
  std::vector<double> memory;
};

class Steered final : public Actuator, public Steering {};
class Told final : public Actuator, public Reporting {};

}  // namespace

TEST_SUITE("actuators") {
  TEST_CASE("a list has one sequence for each interface, in its own order") {
    ActuatorList list;
    auto owned = std::make_unique<Steered>();
    Steered* const first = owned.get();
    list.own(std::move(owned));
    Told second;
    Recorded third;
    Steered fourth;
    list.add(second);
    list.add(third);
    const AddedActuator added(list, fourth);
    CHECK((list.all<Actuator>() == std::vector<Actuator*>{first, &second, &third, &fourth}));
    CHECK((list.all<Steering>() == std::vector<Steering*>{first, &third, &fourth}));
    CHECK((list.all<Reporting>() == std::vector<Reporting*>{&second, &third}));
    CHECK((list.all<Saving>() == std::vector<Saving*>{&third}));
    list.remove(third);
    CHECK((list.all<Actuator>() == std::vector<Actuator*>{first, &second, &fourth}));
    CHECK((list.all<Steering>() == std::vector<Steering*>{first, &fourth}));
    CHECK(list.all<Measuring>().empty());
    CHECK(list.all<Comparing>().empty());
  }

  TEST_CASE("one that is added is called in every step, and no longer when it is gone") {
    Recorded recorded;
    auto session = solo_session();
    {
      const AddedActuator added(session.state().actuators(), recorded);
      { auto step = session.step(); }
    }
    { auto step = session.step(); }
    CHECK((recorded.calls ==
           std::vector<std::string>{"check watching", "begin_step", "end_step of rank 0"}));
    CHECK(recorded.contributed == 1);
  }

  TEST_CASE("plans are applied where a reducer carries them out, and measured for before") {
    Recorded recorded;
    auto session = solo_session();
    const AddedActuator added(session.state().actuators(), recorded);
    torch::nn::Linear model(2, 1);
    Reducer reducer(session, model->parameters());
    {
      auto step = session.step();
      session.calibrate(*model, [] { return at::Tensor(); });
      session.calibrate(*model, [] { return at::Tensor(); });  // nothing left to calibrate
      reducer.average(step);
    }
    CHECK((recorded.calls == std::vector<std::string>{"check reducing", "apply 0", "begin_step",
                                                      "calibrate", "forget_run", "forget_run",
                                                      "restart_step", "end_step of rank 0"}));
  }

  TEST_CASE("what one remembers goes round through a save; of another world size it does not") {
    Recorded recorded;
    auto session = solo_session();
    const AddedActuator added(session.state().actuators(), recorded);
    CHECK(own_rows(session.state()).empty());
    recorded.remembers = true;
    recorded.memory = {1, 2.5};
    std::vector<NamedTensor> saved = own_rows(session.state());
    REQUIRE(saved.size() == 1);
    CHECK(saved[0].name == "recorded.rank0");
    recorded.memory = {7};
    load_rows(session.state(), saved);
    CHECK((recorded.memory == std::vector<double>{1, 2.5}));
    saved.push_back({"recorded.rank1", saved[0].tensor});
    recorded.memory = {7};
    load_rows(session.state(), saved);
    CHECK((recorded.memory == std::vector<double>{7}));
    load_rows(session.state(), {});
    CHECK((recorded.memory == std::vector<double>{7}));
  }
}
