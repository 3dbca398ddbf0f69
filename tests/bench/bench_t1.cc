// T1: the cost of updating a counter, a gauge and a histogram, beside prometheus-cpp.
//
//   bench_t1 [--quick]
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "coordinator/testing/random.h"
#include "metrics/catalogue.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/decisions.h"
#include "metrics/topics/progress.h"
#include "tests/bench/line.h"
#include "tests/metrics/simulated_job.h"

namespace {

using namespace cox;
using namespace cox::metrics;
using bench::Line;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBatch = 4096;  // updates between two readings of the clock

// Makes the compiler write `value` to memory, as if another function might read it.
template <class T>
void stays(T& value) {
  asm volatile("" : "+m"(value));
}

// Returns durations over all buckets and beyond, in random order, so that branches are
// mispredicted.
std::vector<double> durations() {
  testing::Random random(5);
  std::vector<double> out;
  for (std::size_t i = 0; i < kBatch; ++i)
    out.push_back(
        std::pow(10.0, -5.5 + 8 * static_cast<double>(random.below(1 << 20)) / (1 << 20)));
  return out;
}

// Returns the nanoseconds of update(i), one figure for each batch.
template <class Update>
std::vector<double> batches(int count, Update update) {
  std::vector<double> ns;
  for (int batch = 0; batch < count; ++batch) {
    const auto began = Clock::now();
    for (std::size_t i = 0; i < kBatch; ++i) update(i);
    const std::chrono::duration<double, std::nano> took = Clock::now() - began;
    ns.push_back(took.count() / kBatch);
  }
  return ns;
}

void tell(std::string_view what, std::string_view by, std::string_view beside,
          const std::vector<double>& ns, double limit) {
  const bench::Median middle = bench::median_of(ns);
  Line line("T1", middle.value, "ns");
  if (by == "coxswain") line.limit(limit);
  line.with("figure", what).with("by", by).with("beside", beside);
  line.with("low_95", middle.low).with("high_95", middle.high);
  line.with("p99_of_batches", bench::quantile(ns, 0.99)).print();
}

// Coxswain's values: plain ones of the thread that records rounds.
struct Values {
  ControlCounters counters;
  StepSummary summary;
  ProgressView progress;
  DecisionsView decisions;
};

void ours(int count, std::string_view beside) {
  const auto values = std::make_unique<Values>();
  const std::vector<double> seconds = durations();
  tell("counter", "coxswain", beside,
       batches(count,
               [&](std::size_t) {
                 ++values->counters.rounds;
                 stays(values->counters.rounds);
               }),
       2.5);
  tell("gauge", "coxswain", beside,
       batches(count,
               [&](std::size_t i) {
                 values->summary.gradient_norm = seconds[i];
                 stays(values->summary.gradient_norm);
               }),
       2.5);
  tell("histogram, 13 buckets", "coxswain", beside,
       batches(count, [&](std::size_t i) { values->progress.step_seconds.observe(seconds[i]); }),
       8);
  tell("histogram, 16 buckets", "coxswain", beside,
       batches(count, [&](std::size_t i) { values->decisions.decide_seconds.observe(seconds[i]); }),
       8);
}

struct Theirs {
  prometheus::Counter counter;
  prometheus::Gauge gauge;
  prometheus::Histogram few{{kStepBuckets.begin(), kStepBuckets.end()}};
  prometheus::Histogram many{{kControlBuckets.begin(), kControlBuckets.end()}};
};

void theirs(Theirs& values, int count, std::string_view beside) {
  const std::vector<double> seconds = durations();
  const auto say = [&](std::string_view what, auto update) {
    tell(what, "prometheus-cpp", beside, batches(count, update), 0);
  };
  say("counter", [&](std::size_t) { values.counter.Increment(); });
  say("gauge", [&](std::size_t i) { values.gauge.Set(seconds[i]); });
  say("histogram, 13 buckets", [&](std::size_t i) { values.few.Observe(seconds[i]); });
  say("histogram, 16 buckets", [&](std::size_t i) { values.many.Observe(seconds[i]); });
}

// Calls `work` repeatedly on another thread during its lifetime.
template <class Work>
class Beside {
 public:
  explicit Beside(Work work)
      : thread_([this, work] {
          while (!is_over_.load(std::memory_order_relaxed)) work();
        }) {}
  ~Beside() {
    is_over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

// Times a whole round as the coordinator records it, with all changes and a new snapshot. The time
// of making up the round is measured apart and subtracted.
void whole_round(int rounds) {
  class Nothing final : public StepSink {
    void record(const StepRecord&) override {}
  } nothing;
  SimulatedSetup setup;
  setup.numerics = true;
  SimulatedJob job(setup);
  TelemetryState state(job.job(), UnixTime{1}, {"0.1.0", "bench"}, kSimulatedPeakFlops);
  job.steps(state, 100);
  std::vector<double> us;
  std::vector<double> made_up;
  for (int i = 0; i < rounds; ++i) {
    for (StepSink* sink : {static_cast<StepSink*>(&state), static_cast<StepSink*>(&nothing)}) {
      const auto began = Clock::now();
      job.step(*sink);
      const std::chrono::duration<double, std::micro> took = Clock::now() - began;
      (sink == &state ? us : made_up).push_back(took.count());
    }
  }
  const double taken = bench::quantile(us, 0.5) - bench::quantile(made_up, 0.5);
  Line("T1", taken, "us")
      .with("figure", "a whole round recorded and published")
      .with("ranks", 4)
      .with("blocks", 14)
      .with("p99_with_making_it_up", bench::quantile(us, 0.99))
      .print();
}

}  // namespace

int main(int argc, char** argv) {
  const int count = bench::effort_of(argc, argv) == bench::Effort::quick ? 200 : 4000;
  Theirs values;
  ours(count, "nobody");
  theirs(values, count, "nobody");
  {
    SimulatedJob job({});
    TelemetryState state(job.job(), UnixTime{1});
    job.steps(state, 80);
    const Beside scraper([&state] { (void)exposition(*state.snapshot()); });
    ours(count, "a thread that scrapes all the time");
  }
  {
    const Beside scraper([&values] {
      for (int i = 0; i < 100; ++i) {
        (void)values.counter.Collect();
        (void)values.gauge.Collect();
        (void)values.few.Collect();
        (void)values.many.Collect();
      }
    });
    theirs(values, count, "a thread that scrapes all the time");
  }
  whole_round(count / 2);
}
