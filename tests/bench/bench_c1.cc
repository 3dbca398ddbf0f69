// C1: one control round against bare MPI with the same bytes, in one run: a gather of 256 bytes a
// rank and a broadcast of 128. Runs under mpiexec with 2, 4, 8 ranks. All contestants take turns in
// short blocks. The time of a round is rank 0's, from one round's start to the next in a closed
// loop.
#include <mpi.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"
#include "tests/bench/bare_boards.h"
#include "tests/bench/control_rounds.h"
#include "tests/bench/line.h"

namespace {

using namespace cox;
using bench::ControlRounds;
using Clock = std::chrono::steady_clock;

constexpr int kSignalBytes = 256;
constexpr int kMaskBytes = 128;

class BarePair {
 public:
  explicit BarePair(int ranks) : all_(static_cast<std::size_t>(ranks) * kSignalBytes) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  }
  ~BarePair() { MPI_Comm_free(&comm_); }
  BarePair(const BarePair&) = delete;
  BarePair& operator=(const BarePair&) = delete;

  void blocking() {
    MPI_Gather(signal_.data(), kSignalBytes, MPI_BYTE, all_.data(), kSignalBytes, MPI_BYTE, 0,
               comm_);
    MPI_Bcast(mask_.data(), kMaskBytes, MPI_BYTE, 0, comm_);
  }

  void polled() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Igather(signal_.data(), kSignalBytes, MPI_BYTE, all_.data(), kSignalBytes, MPI_BYTE, 0,
                comm_, &request);
    poll(request);
    MPI_Ibcast(mask_.data(), kMaskBytes, MPI_BYTE, 0, comm_, &request);
    poll(request);
  }

  // Polls until all ranks have arrived.
  void meet() {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(comm_, &request);
    poll(request);
  }

 private:
  static void poll(MPI_Request& request) {
    int done = 0;
    for (;;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return;
      sched_yield();
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  std::array<char, kSignalBytes> signal_{};
  std::array<char, kMaskBytes> mask_{};
  std::vector<char> all_;
};

struct Contestant {
  const char* name;
  int rounds;  // in one turn
  std::function<bool()> round;
  std::vector<double> microseconds{};
};

bool take_turn(BarePair& bare, Contestant& who, bool counts) {
  bare.meet();
  auto last = Clock::now();
  for (int i = 0; i < who.rounds; ++i) {
    if (!who.round()) return false;
    const auto now = Clock::now();
    // The first rounds of a turn meet cold caches and a sleeping coordinator.
    if (counts && i >= who.rounds / 10) {
      who.microseconds.push_back(std::chrono::duration<double, std::micro>(now - last).count());
    }
    last = now;
  }
  return true;
}

struct Scale {
  int ranks;
  int cores;
};

// Explanatory figures have no limit. Two ranks have none either, because they spin, which a
// sleeping thread cannot match, and no rank waits for a round.
enum class Judged { yes, no };

void tell(const Contestant& ours, const Contestant& bare, const Scale& scale, Judged judged,
          const std::vector<double>& decide_us) {
  for (const double part : {0.5, 0.99}) {
    const double mine = bench::quantile(ours.microseconds, part);
    const double theirs = bench::quantile(bare.microseconds, part);
    bench::Line line("C1", mine / theirs, "ratio");
    if (judged == Judged::yes) line.limit(part == 0.5 ? 1.10 : 1.5);
    line.with("figure", part == 0.5 ? "p50" : "p99").with("path", ours.name);
    line.with("ranks", scale.ranks).with("cores", scale.cores);
    line.with("ours_us", mine).with("bare_us", theirs).with("bare", bare.name);
    if (part == 0.5) {
      // A tenth of the rounds is this quick, which shows a quiet moment of the machine.
      line.with("ours_us_p10", bench::quantile(ours.microseconds, 0.1));
      line.with("bare_us_p10", bench::quantile(bare.microseconds, 0.1));
    }
    line.with("rounds", static_cast<double>(ours.microseconds.size()));
    if (!decide_us.empty()) line.with("decide_us_p50", bench::quantile(decide_us, 0.5));
    line.print();
  }
}

// The faster pair is the baseline.
void tell_all(const std::vector<Contestant>& who, const Scale& scale, const ControlRounds& mailbox,
              const ControlRounds& mpi) {
  const bool blocking_wins =
      bench::quantile(who[0].microseconds, 0.5) < bench::quantile(who[1].microseconds, 0.5);
  const Contestant& bare = who[blocking_wins ? 0 : 1];
  tell(who[2], bare, scale, Judged::no, {});
  const Judged judged = scale.ranks > 2 ? Judged::yes : Judged::no;
  tell(who[3], bare, scale, judged, mailbox.answers().decide_microseconds());
  tell(who[4], bare, scale, judged, mpi.answers().decide_microseconds());
}

int compare(transport::Communicator& world, bench::Effort effort) {
  auto mailbox = ControlRounds::start(world, ControlPath::mailbox, 0);
  auto mpi = ControlRounds::start(world, ControlPath::mpi, 0);
  auto boards = bench::BareBoards::start(world);
  for (const Status& status : {mailbox.status(), mpi.status(), boards.status()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.text().c_str());
    transport::MpiRuntime::abort_all(1);
  }
  const Scale scale{world.size(), transport::usable_cores()};
  BarePair bare(scale.ranks);
  const int rounds = 200;
  // Blocking calls cost milliseconds each once ranks outnumber cores.
  const int blocking_rounds = scale.ranks > scale.cores ? 4 : rounds;
  std::vector<Contestant> contestants;
  contestants.push_back({"blocking", blocking_rounds, [&] { return bare.blocking(), true; }});
  contestants.push_back({"polled", rounds, [&] { return bare.polled(), true; }});
  contestants.push_back({"mailboxes alone", rounds, [&] { return (*boards)->round(); }});
  contestants.push_back({"mailbox", rounds, [&] { return (*mailbox)->round(); }});
  contestants.push_back({"mpi", rounds, [&] { return (*mpi)->round(); }});
  const int turns = effort == bench::Effort::quick ? 6 : 30;
  for (int turn = 0; turn <= turns; ++turn) {
    for (Contestant& contestant : contestants) {
      if (!take_turn(bare, contestant, turn > 0)) {
        std::fprintf(stderr, "C1: no answer within 20 s (%s)\n", contestant.name);
        transport::MpiRuntime::abort_all(1);
      }
    }
  }
  (*mailbox)->finish();
  (*mpi)->finish();
  if (world.rank() == kRoot) tell_all(contestants, scale, **mailbox, **mpi);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Effort effort = bench::effort_of(argc, argv);
  auto runtime = transport::MpiRuntime::start(&argc, &argv);
  auto world = runtime.ok() ? runtime->world({}) : runtime.status();
  if (!world.ok()) {
    std::fprintf(stderr, "%s\n", world.status().text().c_str());
    return 1;
  }
  return compare(**world, effort);
}
