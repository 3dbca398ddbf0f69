// T2: the cost of a scrape for each series, beside prometheus-cpp, and the effect of scraping
// 100,000 series once a second on a training step.
//
//   bench_t2 [--quick]
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/testing/random.h"
#include "metrics/catalogue.h"
#include "metrics/telemetry_state.h"
#include "metrics/topics/ranks.h"
#include "tests/bench/line.h"
#include "tests/metrics/simulated_job.h"

namespace {

using namespace cox;
using namespace cox::metrics;
using bench::Line;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::int32_t kRanks = 10'000;
constexpr std::size_t kRows = 10;  // with a series for each rank

// ---- The scraped series.

std::shared_ptr<const Snapshot> snapshot_of(SimulatedSetup setup, int rounds) {
  setup.numerics = true;
  SimulatedJob job(std::move(setup));
  TelemetryState state(job.job(), UnixTime{1}, {"0.1.0", "bench"}, kSimulatedPeakFlops);
  job.steps(state, rounds);
  return state.snapshot();
}

// Returns rows that no catalogue should have: a series for each rank.
std::vector<Metric> rows_of_ranks() {
  std::vector<std::string> ranks;
  for (std::int32_t r = 0; r < kRanks; ++r) ranks.push_back(std::to_string(r));
  std::vector<Metric> rows;
  for (std::size_t k = 0; k < kRows; ++k) {
    rows.push_back(gauge(("coxswain_bench_rank_phase_" + std::to_string(k) + "_seconds").c_str(),
                         "seconds", "Time of a rank in a phase",
                         per("rank", ranks, [k](const Snapshot& s, std::size_t r) {
                           const RankRow& row = s.view<RanksView>().table->rows[r];
                           return k < kPhases ? row.phase_seconds[k] : row.wall_seconds;
                         })));
  }
  return rows;
}

std::size_t series_in(const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
    count += text[at] != '#' ? 1 : 0;
  return count;
}

// Prints the nanoseconds for each series of scrape(), which returns the text.
template <class Scrape>
void tell(std::string_view what, std::string_view by, int times, Scrape scrape) {
  const std::string first = scrape();
  const auto series = static_cast<double>(series_in(first));
  std::vector<double> ns;
  for (int i = 0; i < times; ++i) {
    const auto began = Clock::now();
    const std::string text = scrape();
    ns.push_back(1e9 * Seconds(Clock::now() - began).count() / series);
    if (text.size() != first.size()) std::abort();
  }
  const bench::Median middle = bench::median_of(ns);
  Line line("T2", middle.value, "ns");
  if (by == "coxswain") line.limit(100);
  line.with("figure", what).with("by", by).with("series", series);
  line.with("bytes", static_cast<double>(first.size())).with("low_95", middle.low);
  line.with("high_95", middle.high).with("p99", bench::quantile(ns, 0.99)).print();
}

void tell_of_prometheus(std::size_t rows, std::size_t ranks, int times) {
  prometheus::Registry registry;
  for (std::size_t k = 0; k < rows; ++k) {
    auto& family = prometheus::BuildGauge()
                       .Name("coxswain_bench_rank_phase_" + std::to_string(k) + "_seconds")
                       .Help("Time of a rank in a phase")
                       .Register(registry);
    for (std::size_t r = 0; r < ranks; ++r)
      family.Add({{"rank", std::to_string(r)}}).Set(0.1 + 1e-7 * static_cast<double>(r));
  }
  tell("a scrape", "prometheus-cpp", times,
       [&registry] { return prometheus::TextSerializer().Serialize(registry.Collect()); });
}

// ---- The effect on a step.

// Formats the text once a second and sends it to a reader, as a server does.
class Scraper {
 public:
  Scraper(const std::vector<Metric>& rows, std::shared_ptr<const Snapshot> snapshot)
      : rows_(rows), snapshot_(std::move(snapshot)) {
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()) != 0) std::abort();
    reader_ = std::thread([this] {
      std::array<char, 65536> piece{};
      while (::read(ends_[1], piece.data(), piece.size()) > 0) {
      }
    });
  }
  ~Scraper() {
    ::shutdown(ends_[0], SHUT_WR);
    reader_.join();
    for (const int end : ends_) ::close(end);
  }

  void scrape() {
    const std::string text = exposition(rows_, *snapshot_);
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t sent = ::write(ends_[0], text.data() + at, text.size() - at);
      if (sent <= 0) std::abort();
      at += static_cast<std::size_t>(sent);
    }
  }

 private:
  const std::vector<Metric>& rows_;
  std::shared_ptr<const Snapshot> snapshot_;
  std::array<int, 2> ends_{};
  std::thread reader_;
};

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A step of about 10 ms: products of rows of a matrix that fits only the shared cache.
class Step {
 public:
  Step() : weights_(1 << 20, 0.5F), input_(1024, 0.25F), output_(1024) {}

  void run() {
    for (int repeat = 0; repeat < 24; ++repeat) {
      for (std::size_t row = 0; row < 1024; ++row) {
        std::array<float, 16> sums{};
        for (std::size_t i = 0; i < 1024; i += 16) {
          for (std::size_t k = 0; k < 16; ++k)
            sums[k] += weights_[1024 * row + i + k] * input_[i + k];
        }
        for (const float sum : sums) output_[row] += sum;
      }
      asm volatile("" : : "r"(output_.data()) : "memory");
    }
  }

 private:
  std::vector<float> weights_;
  std::vector<float> input_;
  std::vector<float> output_;
};

struct Times {
  std::vector<double> wall;
  std::vector<double> cpu;
};

// Runs the steps of a second. The scraper scrapes once, if there is one.
Times steps_of_a_window(Step& step, Scraper* scraper, double at) {
  const auto began = Clock::now();
  std::thread beside;
  if (scraper != nullptr) {
    beside = std::thread([scraper, began, at] {
      std::this_thread::sleep_until(began +
                                    std::chrono::duration_cast<Clock::duration>(Seconds(at)));
      scraper->scrape();
    });
  }
  Times out;
  while (Clock::now() - began < Seconds(1)) {
    const auto before = Clock::now();
    const double cpu = cpu_seconds();
    step.run();
    out.cpu.push_back(cpu_seconds() - cpu);
    out.wall.push_back(Seconds(Clock::now() - before).count());
  }
  if (beside.joinable()) beside.join();
  return out;
}

using Windows = std::vector<Times>;  // windows of one kind
using Column = std::vector<double> Times::*;

double p99(const Windows& windows, const std::vector<std::size_t>& chosen, Column column) {
  std::vector<double> all;
  for (const std::size_t w : chosen)
    all.insert(all.end(), (windows[w].*column).begin(), (windows[w].*column).end());
  return bench::quantile(std::move(all), 0.99);
}

// Returns the relative change of the p99 with scrapes. The interval is a bootstrap over pairs of
// windows (percentiles).
bench::Median moved(const Windows& quiet, const Windows& scraped, Column column) {
  const auto change = [&](const std::vector<std::size_t>& chosen) {
    return p99(scraped, chosen, column) / p99(quiet, chosen, column) - 1;
  };
  std::vector<std::size_t> chosen(quiet.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) chosen[i] = i;
  const double value = change(chosen);
  testing::Random random(9);
  std::vector<double> drawn;
  for (int i = 0; i < 2000; ++i) {
    for (std::size_t& one : chosen) one = random.below(quiet.size());
    drawn.push_back(change(chosen));
  }
  return {value, bench::quantile(drawn, 0.025), bench::quantile(drawn, 0.975)};
}

void tell_of_steps(const std::vector<Metric>& rows, std::shared_ptr<const Snapshot> snapshot,
                   int pairs) {
  Scraper scraper(rows, std::move(snapshot));
  Step step;
  testing::Random random(3);
  Windows quiet;
  Windows scraped;
  steps_of_a_window(step, &scraper, 0.1);  // warm
  for (int pair = 0; pair < pairs; ++pair) {
    for (const bool is_first : {true, false}) {
      const bool is_scraped = is_first == (pair % 2 == 0);
      const double at = 0.1 + 0.7 * static_cast<double>(random.below(1000)) / 1000;
      Times times = steps_of_a_window(step, is_scraped ? &scraper : nullptr, at);
      (is_scraped ? scraped : quiet).push_back(std::move(times));
    }
  }
  std::vector<std::size_t> every(quiet.size());
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = i;
  const std::pair<const char*, Column> kinds[] = {{"wall time", &Times::wall},
                                                  {"CPU time", &Times::cpu}};
  for (const auto& [name, column] : kinds) {
    const bench::Median change = moved(quiet, scraped, column);
    Line line("T2", 100 * change.value, "%");
    line.limit(0.1).with("figure", "p99 of a step, with a scrape of 100,000 series a second");
    line.with("of", name).with("low_95", 100 * change.low).with("high_95", 100 * change.high);
    line.with("p99_ms", 1e3 * p99(quiet, every, column)).with("pairs_of_windows", pairs).print();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == bench::Effort::quick;
  const auto ordinary = snapshot_of({}, 100);
  tell("a scrape of the catalogue", "coxswain", is_quick ? 200 : 5000,
       [&] { return exposition(*ordinary); });
  SimulatedSetup large;
  large.ranks = kRanks;
  const auto many = snapshot_of(large, 3);
  const std::vector<Metric> rows = rows_of_ranks();
  tell("a scrape", "coxswain", is_quick ? 20 : 200, [&] { return exposition(rows, *many); });
  tell_of_prometheus(1, 500, is_quick ? 100 : 500);
  tell_of_prometheus(kRows, static_cast<std::size_t>(kRanks), is_quick ? 3 : 10);
  tell_of_steps(rows, many, is_quick ? 3 : 40);
}
