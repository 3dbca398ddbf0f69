// Deaths of ranks: the ends that count as deaths, their sentences, and the reporting process. Uses
// forked children, which die in a known order.
#include "coordinator/runtime/death_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "coordinator/transport/shared/segment.h"
#include "tests/runtime/driven_job.h"
#include "tests/support/file_limit.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using transport::Lifeline;
using transport::LifelinePort;
using transport::MarkClock;
using transport::MarkWriter;

RankEnd ended(Activity activity, std::optional<std::int32_t> code) {
  RankEnd end;
  end.mark.rank = RankId(2);
  end.mark.activity = activity;
  end.mark.step = StepId(212);
  end.mark.activity_seconds = 0.34;
  end.code = code;
  return end;
}

std::string text_of(const RankEnd& end) {
  std::array<char, 512> bytes;
  return std::string(write_death(end, "node-7", 71, bytes));
}

constexpr std::int32_t kExit3 = 3 << 8;

// A node whose ranks are children of the test. Each child waits until it is killed.
class Node {
 public:
  explicit Node(std::size_t ranks) : marks_(marks_of(ranks)), port_(*LifelinePort::open()) {
    sigemptyset(&goodbye_);
    sigaddset(&goodbye_, SIGUSR2);
    sigprocmask(SIG_BLOCK, &goodbye_, nullptr);  // inherited by the children
    for (std::size_t r = 0; r < ranks; ++r) {
      marks_.ranks.push_back(rank_id(r + 10));
      processes_.push_back(fork_rank(r));
    }
  }
  ~Node() {
    for (const pid_t process : processes_) {
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
    }
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const NodeMarks& marks() const { return marks_; }
  std::uint64_t address() const { return port_.address(); }
  LifelinePort take_port() { return std::move(port_); }
  MarkWriter writer(std::size_t slot) const { return marks_.board.writer(slot); }
  pid_t process(std::size_t slot) const { return processes_[slot]; }
  // Lets a rank say goodbye. Returns after it has.
  void say_goodbye(std::size_t slot) const {
    kill(processes_[slot], SIGUSR2);
    int state = 0;
    REQUIRE(waitpid(processes_[slot], &state, WUNTRACED) == processes_[slot]);
    REQUIRE(WIFSTOPPED(state));
  }
  // Ends a process and waits for its end. The exit code stays readable.
  void end(std::size_t slot, int signal) const {
    kill(processes_[slot], signal);
    siginfo_t info{};
    REQUIRE(waitid(P_PID, static_cast<id_t>(processes_[slot]), &info, WEXITED | WNOWAIT) == 0);
  }

 private:
  static NodeMarks marks_of(std::size_t ranks) {
    auto memory = *transport::inherited_segment(transport::MarkBoard::bytes_needed(ranks));
    const auto board = *transport::MarkBoard::format(memory.bytes(), ranks);
    return {memory, board, {}, 0};
  }

  pid_t fork_rank(std::size_t slot) const {
    const pid_t process = fork();
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGABRT, SIG_DFL);
      {
        const auto line = Lifeline::connect(port_.address());
        int taken = 0;
        sigwait(&goodbye_, &taken);
      }
      raise(SIGSTOP);
      for (;;) pause();
    }
    const auto space = transport::this_process().space;
    marks_.board.writer(slot).sign({process, space});
    marks_.board.writer(slot).enter(Activity::backward, StepId(100 + slot), MarkClock::now());
    return process;
  }

  NodeMarks marks_;
  LifelinePort port_;
  sigset_t goodbye_;
  std::vector<pid_t> processes_;
};

// A watch that writes its line into a pipe. The pipe ends with the process.
class Watch {
 public:
  Watch(Node& node, DeathWatchSetup setup) {
    REQUIRE(pipe2(pipe_, O_CLOEXEC) == 0);
    setup.lines_to = pipe_[1];
    watch_ = *DeathWatch::start(node.take_port(), node.marks(), setup);
    close(pipe_[1]);
  }
  ~Watch() { close(pipe_[0]); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  pid_t process() const { return watch_->process(); }
  void job_ends_in_order() { watch_.reset(); }
  std::string said_line() const {
    std::string text;
    for (char c = 0; c != '\n' && ::read(pipe_[0], &c, 1) == 1;) text += c;
    return text;
  }
  // Returns all output of the watch until its end.
  std::string said() const {
    std::string text;
    std::array<char, 512> part;
    for (ssize_t n = 0; (n = ::read(pipe_[0], part.data(), part.size())) > 0;)
      text.append(part.data(), static_cast<std::size_t>(n));
    return text;
  }

 private:
  int pipe_[2] = {-1, -1};
  std::unique_ptr<DeathWatch> watch_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_SUITE_BEGIN("death watch");

TEST_CASE("an end is a death unless the loop had ended or the rank told why") {
  struct Row {
    const char* name;
    Activity activity;
    bool is_explained;
    std::optional<std::int32_t> code;
    EndKind kind;
  };
  const Row rows[] = {
      {"killed in its step", Activity::backward, false, SIGKILL, EndKind::death},
      {"left in its step", Activity::backward, false, kExit3, EndKind::death},
      {"left in its step, as if all were well", Activity::outside, false, 0, EndKind::death},
      {"nobody knows how, in its step", Activity::waiting, false, std::nullopt, EndKind::death},
      {"before its first step", Activity::unknown, false, SIGSEGV, EndKind::death},
      {"told", Activity::backward, true, 1 << 8, EndKind::explained},
      {"told, and killed", Activity::finished, true, SIGKILL, EndKind::explained},
      {"done", Activity::finished, false, 0, EndKind::in_order},
      {"killed when done", Activity::finished, false, SIGKILL, EndKind::in_order},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    RankEnd end = ended(row.activity, row.code);
    end.is_explained = row.is_explained;
    CHECK(kind_of(end) == row.kind);
  }
}

TEST_CASE("the exit code is read of a process that has ended, whatever its name") {
  std::string line = "12 (a) b (c) Z";
  for (int field = 4; field < 52; ++field) line += " " + std::to_string(field);
  CHECK(parse_exit_code(line + " 9\n") == 9);
  CHECK(parse_exit_code(line + " 768") == kExit3);
  CHECK(parse_exit_code(line) == std::nullopt);
  line[13] = 'R';
  CHECK(parse_exit_code(line + " 9\n") == std::nullopt);
  for (const char* text : {"", "12", "12 (a", "12 (a)", "12 (a) ", "12 (a) Z", "12 (a) Z 1 x"})
    CHECK(parse_exit_code(text) == std::nullopt);
}

TEST_CASE("a death is told with rank, host, process, cause, and where the rank was") {
  CHECK(text_of(ended(Activity::backward, SIGKILL)) ==
        "rank 2 on node-7 (process 71) ended before its loop did: killed by signal 9 (SIGKILL: by "
        "a user, the launcher, or the kernel when memory ran out); it was in backward "
        "of step 212 for 0.3 s");
  CHECK(has(text_of(ended(Activity::waiting, kExit3)),
            "exit code 3, without Session::finish(); it waited for other ranks in step 212"));
  CHECK(has(text_of(ended(Activity::other, std::nullopt)),
            "the cause is not known; it was in none of"));
  CHECK(has(text_of(ended(Activity::saving, 0x80 | SIGABRT)), "SIGABRT: abort()"));
  CHECK(has(text_of(ended(Activity::unknown, SIGUSR1)), "it had begun no step"));
}

TEST_CASE("a rank that is killed under a limit on CPU seconds may have passed it") {
  RankEnd end = ended(Activity::forward, SIGKILL);
  end.most_cpu_seconds = 7;
  CHECK(has(text_of(end),
            "the kernel when memory ran out, or beyond its 7 CPU seconds, ulimit -t); it was in"));
  end.code = SIGSEGV;
  CHECK_FALSE(has(text_of(end), "ulimit"));
}

TEST_CASE("a sentence is cut to its place") {
  std::array<char, 40> few;
  CHECK(write_death(ended(Activity::data, SIGKILL), "node-7", 71, few).size() == few.size());
  CHECK(write_death(ended(Activity::data, SIGKILL), "node-7", 71, {}).empty());
}

TEST_CASE("the first of many deaths is told, once, also by a watch that could not run meanwhile") {
  for (const std::size_t first : {0u, 2u, 5u, 7u}) {
    CAPTURE(first);
    Node node(8);
    const test::TempFolder folder;
    const auto saves = folder / "saves";
    std::filesystem::create_directories(saves / "step-000000000100");
    const Watch watch(node, {.world_size = 8, .run_directory = folder / ".", .saves = saves});
    kill(watch.process(), SIGSTOP);
    node.end(first, SIGABRT);
    for (std::size_t r = 8; r-- > 0;) {
      if (r != first) node.end(r, SIGKILL);
    }
    kill(watch.process(), SIGCONT);
    const std::string said = watch.said();
    const std::string rank = std::to_string(first + 10);
    CHECK(said.starts_with("coxswain[" + rank + "] error: rank " + rank + " on "));
    CHECK(has(said, "(process " + std::to_string(node.process(first)) + ")"));
    CHECK(has(said, "SIGABRT"));
    CHECK(has(said, "in backward of step " + std::to_string(100 + first) + " for "));
    CHECK(has(said, "the newest save in " + saves.string()));
    CHECK(said.find('\n') == said.size() - 1);
    const auto ending = read_ending(folder / ".");
    REQUIRE(ending.ok());
    CHECK(has(said, *ending));
    CHECK_FALSE(ending->empty());
    forget_ending(folder / ".");
    CHECK(read_ending(folder / ".")->empty());
  }
}

TEST_CASE("ends in order and ends that are explained say nothing, nor does what follows them") {
  for (const bool is_explained : {false, true}) {
    CAPTURE(is_explained);
    Node node(3);
    const test::TempFolder folder;
    Watch watch(node, {.world_size = 3, .run_directory = folder / ".", .saves = {}});
    if (is_explained) {
      node.writer(1).explain_end();
      for (const std::size_t r : {1u, 0u, 2u}) node.end(r, SIGKILL);
    } else {
      watch.job_ends_in_order();
      for (std::size_t r = 0; r < 3; ++r) node.end(r, SIGKILL);
    }
    CHECK(watch.said() == "");
    CHECK(read_ending(folder / ".")->empty());
  }
}

TEST_CASE("who has said goodbye is not told, and who dies afterwards is") {
  Node node(3);
  Watch watch(node, {.world_size = 3, .run_directory = {}, .saves = {}});
  node.say_goodbye(2);
  node.end(2, SIGKILL);
  node.end(1, SIGKILL);
  CHECK(watch.said().starts_with("coxswain[11] error: rank 11 on "));
}

TEST_CASE("a lifeline from a process that is no rank's ends the waiting for the others") {
  Node node(2);
  const transport::ProcessId nobody{1, transport::this_process().space};
  node.writer(1).sign(nobody);  // makes rank 1's own lifeline that of a stranger, at any time
  const auto watch = DeathWatch::start(node.take_port(), node.marks(),
                                       {.world_size = 2, .run_directory = {}, .saves = {}});
  CHECK(watch.status().code() == StatusCode::unavailable);
}

TEST_CASE("a watch that gets no descriptor names the limit on them") {
  Node node(2);
  LifelinePort port = node.take_port();
  const test::FileLimit none(0);
  const auto watch = DeathWatch::start(std::move(port), node.marks(),
                                       {.world_size = 2, .run_directory = {}, .saves = {}});
  CHECK(has(watch.status().message(), "Too many open files (ulimit -n)"));
}

// The order is certain, because a lifeline has a higher number than the launcher's descriptors
// (lifeline.h).
TEST_CASE("the system closes a lifeline before any descriptor of the launcher's, however often") {
  for (int round = 0; round < 200; ++round) {
    int launcher[2];
    REQUIRE(pipe2(launcher, O_CLOEXEC) == 0);
    const LifelinePort port = *LifelinePort::open();
    const pid_t rank = fork();
    if (rank == 0) {
      close(launcher[0]);
      const auto line = Lifeline::connect(port.address());
      if (::write(launcher[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    close(launcher[1]);
    char word = 0;
    REQUIRE(::read(launcher[0], &word, 1) == 1);
    const int line = accept4(port.descriptor(), nullptr, nullptr, SOCK_CLOEXEC);
    const int ends = epoll_create1(EPOLL_CLOEXEC);
    for (const int each : {launcher[0], line}) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = each;
      REQUIRE(epoll_ctl(ends, EPOLL_CTL_ADD, each, &event) == 0);
    }
    kill(rank, SIGKILL);
    waitpid(rank, nullptr, 0);
    epoll_event first{};
    REQUIRE(epoll_wait(ends, &first, 1, -1) == 1);
    CHECK(int{first.data.fd} == line);
    for (const int each : {launcher[0], line, ends}) close(each);
  }
}

TEST_CASE("the newest save is named where there is one when the rank dies") {
  for (const bool is_saved : {false, true}) {
    CAPTURE(is_saved);
    Node node(1);
    const test::TempFolder folder;
    const auto saves = folder / "saves";
    std::filesystem::create_directories(saves / ".writing-0-step-000000000100");
    std::filesystem::create_directory(saves / "step-best");
    const Watch watch(node, {.run_directory = folder / ".", .saves = saves});
    if (is_saved) std::filesystem::create_directory(saves / "step-000000000100");
    node.end(0, SIGKILL);
    const std::string said = watch.said();
    CHECK(has(said, "from the newest save in " + saves.string()) == is_saved);
    CHECK(has(said, "No save is in " + saves.string()) == !is_saved);
  }
}

TEST_CASE("a file that others have under another name keeps its bytes when an ending is written") {
  Node node(1);
  const test::TempFolder folder;
  test::write_file(folder / "notes", "precious");
  std::filesystem::create_hard_link(folder / "notes", folder / "ending.json.10.new");
  const Watch watch(node, {.run_directory = folder / ".", .saves = {}});
  node.end(0, SIGKILL);
  CHECK(has(watch.said(), "SIGKILL"));
  CHECK(test::read_file(folder / "notes") == "precious");
  CHECK_FALSE(read_ending(folder / ".")->empty());
}

TEST_CASE("quiet means no line, and the run directory still tells") {
  Node node(2);
  const test::TempFolder folder;
  const Watch watch(
      node,
      {.world_size = 2, .run_directory = folder / ".", .saves = {}, .least = LogLevel::quiet});
  for (std::size_t r = 0; r < 2; ++r) node.end(r, SIGKILL);
  CHECK(watch.said() == "");
  CHECK(has(*read_ending(folder / "."), "rank 10 on "));
}

TEST_CASE("the process has none of the job's descriptors and memory") {
  Node node(1);
  const std::vector<char> memory(std::size_t{64} << 20, 'x');
  const Watch watch(node, {.world_size = 1, .run_directory = {}, .saves = {}});
  kill(watch.process(), SIGSTOP);  // any moment: the promise always holds
  kill(watch.process(), SIGCONT);
  node.end(0, SIGKILL);
  const std::string said = watch.said();  // blocks until the watch has ended
  CHECK(said.starts_with("coxswain[10] error: "));
  CHECK(has(said, "No saves were kept"));
  CHECK_FALSE(has(said, "launcher then ends"));
}

TEST_CASE("what is no ending is refused") {
  const test::TempFolder folder;
  CHECK(read_ending(folder / ".")->empty());
  for (const char* bytes : {"", "{", "[]", "{}", "{\"text\":1}"}) {
    CAPTURE(bytes);
    std::ofstream(folder / "ending.json") << bytes;
    CHECK(read_ending(folder / ".").status().code() == StatusCode::data_loss);
  }
  std::ofstream(folder / "ending.json") << "{\"text\":\"rank 2 ended\"}";
  CHECK(*read_ending(folder / ".") == "rank 2 ended");
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::runtime
