#include "coordinator/runtime/death_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <system_error>
#include <thread>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/open_to_write.h"
#include "coordinator/runtime/forked_text.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COX_SANITIZED 1
#else
#define COX_SANITIZED 0
#endif

namespace cox::runtime {
namespace {

using transport::MarkBoard;
using transport::MarkClock;

constexpr const char* kEndingFile = "ending.json";
constexpr const char* kProcessName = "coxswain-watch";
constexpr std::uint64_t kMostEndingBytes = 64 << 10;
constexpr std::uint64_t kOver = ~std::uint64_t{0};
constexpr unsigned kWriteSeconds = 5;      // for a line or a file that cannot be written
constexpr int kReapedMilliseconds = 2000;  // from the end of a lifeline to the end of its process
constexpr int kConnectMilliseconds = 10000;

// --- Data for the forked process, made before the fork. The process keeps only its stack and the
// memory that is mapped from files.

struct Advice {
  std::array<char, 1024> text{};  // the end of the line
  std::size_t size = 0;

  std::string_view view() const { return {text.data(), size}; }
};

struct Orders {
  explicit Orders(const MarkBoard& marks) : board(marks) {}

  MarkBoard board;
  std::array<RankId, DeathWatch::kMostRanks> ranks{};  // by slot
  std::size_t watched = 0;
  bool tells_line = false;
  std::array<char, 64> host{};
  std::size_t host_size = 0;
  std::array<char, PATH_MAX> saves{};  // the folder; empty = none
  Advice with_save;
  Advice without_save;
  int lines_to = -1;
  int over = -1;                                    // an eventfd
  int epoll = -1;                                   // of `over` and of the ranks
  int folder = -1;                                  // the run directory
  int ready = -1;                                   // a pipe, written when all else is closed
  std::array<int, DeathWatch::kMostRanks> lines{};  // of ranks by slot, their lifelines
  std::array<int, DeathWatch::kMostRanks> ends{};   // of ranks by slot, pidfds
  std::array<int, 2 * DeathWatch::kMostRanks + 5> kept{};  // all of the descriptors above
  std::size_t kept_size = 0;

  int keep(int descriptor) { return kept[kept_size++] = descriptor; }
  std::span<const int> all_kept() const { return {kept.data(), kept_size}; }
  std::string_view host_text() const { return {host.data(), host_size}; }
};

// Open descriptors of the job would keep pipes open and locks held.
void close_all_but(std::span<const int> kept) {
  constexpr unsigned kEnd = ~0u;
  for (unsigned first = 0;;) {
    unsigned end = kEnd;  // the first descriptor that is kept
    for (const int each : kept) {
      const auto descriptor = static_cast<unsigned>(each);  // huge if negative
      if (descriptor >= first && descriptor < end) end = descriptor;
    }
    if (first < end && ::syscall(SYS_close_range, first, end - 1, 0) != 0) ::_exit(1);
    if (end == kEnd) return;
    first = end + 1;
  }
}

bool is_within(std::uint64_t first, std::uint64_t end, const void* place) {
  const auto address = reinterpret_cast<std::uint64_t>(place);
  return address >= first && address < end;
}

// Unmaps the memory of one line of /proc/self/maps: "first-end perms offset device inode path".
// Memory directly behind a file's holds the file's variables, such as the C library's. Returns the
// end of the newest file's memory.
std::uint64_t unmap_if_private(std::string_view line, std::uint64_t file_end) {
  const std::size_t dash = place_of("-", line);
  const std::size_t blank = place_of(" ", line);
  constexpr std::size_t kPerms = 4;
  if (dash == kNowhere || blank == kNowhere || dash > blank || blank + kPerms >= line.size())
    return file_end;
  const auto first = number_from<std::uint64_t>({line.data(), dash}, 16);
  const auto end = number_from<std::uint64_t>({line.data() + dash + 1, blank - dash - 1}, 16);
  if (!first || !end) return file_end;
  std::size_t path = blank + 1;
  for (int blanks = 0; blanks < 4 && path < line.size(); ++path) blanks += line[path] == ' ';
  while (path < line.size() && line[path] == ' ') ++path;
  const bool is_memory =
      path == line.size() || is_at(line, path, "[heap]") || is_at(line, path, "[anon");
  if (!is_memory) return *end;
  const bool is_needed = line[blank + kPerms] != 'p' || *first == file_end ||
                         is_within(*first, *end, __builtin_frame_address(0)) ||
                         is_within(*first, *end, __builtin_thread_pointer());
  // Communication libraries replace munmap() by functions of their own.
  if (!is_needed) ::syscall(SYS_munmap, *first, *end - *first);
  return file_end;
}

// Every page that the job writes to would be copied for as long as this process had the memory.
void drop_memory() {
  if (COX_SANITIZED) return;  // the sanitizer needs the memory
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return;
  std::array<char, 4096> part;
  std::array<char, 256> line;
  std::size_t size = 0;
  std::uint64_t file_end = 0;
  for (ssize_t n = 0; (n = ::read(maps, part.data(), part.size())) > 0;) {
    for (const char c : std::string_view(part.data(), static_cast<std::size_t>(n))) {
      if (c == '\n') {
        file_end = unmap_if_private({line.data(), size}, file_end);
        size = 0;
      } else if (size < line.size()) {
        line[size++] = c;
      }
    }
  }
  ::close(maps);
}

// Returns the start of a small file, as far as `to` has room.
std::string_view read_proc(std::int32_t process, std::string_view name, std::span<char> to) {
  std::array<char, 64> path{};
  Text(std::span(path).first(path.size() - 1)) << "/proc/" << process << "/" << name;
  const int file = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t size = ::read(file, to.data(), to.size());
  ::close(file);
  return {to.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

void write_fully(int descriptor, std::string_view text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

// Returns whether `name` can be a save (io::save_name()).
bool is_save_name(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  constexpr std::size_t kDigits = 12;
  if (!is_at(name, 0, kPrefix) || name.size() < kPrefix.size() + kDigits) return false;
  for (std::size_t i = kPrefix.size(); i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return false;
  }
  return true;
}

bool has_save(const char* folder) {
  const int opened = ::open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return false;
  alignas(dirent64) std::array<char, 4096> bytes;
  bool is_found = false;
  for (long size = 1; !is_found && size > 0;) {
    size = ::syscall(SYS_getdents64, opened, bytes.data(), bytes.size());
    for (long at = 0; !is_found && at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(bytes.data() + at);
      is_found = is_save_name(entry->d_name);
      at += entry->d_reclen;
    }
  }
  ::close(opened);
  return is_found;
}

// Information of kernels from 6.15 on about a process that was already waited for. Copied from
// linux/pidfd.h, which older systems lack.
struct PidfdInfo {
  std::uint64_t mask = 0;
  std::uint64_t group = 0;
  std::array<std::uint32_t, 11> unused{};
  std::int32_t exit_code = 0;
};
constexpr std::uint64_t kInfoExit = 1 << 3;
constexpr unsigned long kGetInfo = _IOWR(0xFF, 11, PidfdInfo);
static_assert(sizeof(PidfdInfo) == 64);

std::optional<std::int32_t> exit_code_of(std::int32_t process, int descriptor) {
  pollfd ended{.fd = descriptor, .events = POLLIN, .revents = 0};
  ::poll(&ended, 1, kReapedMilliseconds);
  std::array<char, 1024> line;
  if (const auto code = parse_exit_code(read_proc(process, "stat", line))) return code;
  PidfdInfo info;
  info.mask = kInfoExit;
  if (descriptor < 0 || ::ioctl(descriptor, kGetInfo, &info) != 0) return std::nullopt;
  if ((info.mask & kInfoExit) == 0) return std::nullopt;
  return info.exit_code;
}

// This process inherits the limits of the job's first rank.
std::uint64_t most_cpu_seconds() {
  rlimit found{};
  if (::getrlimit(RLIMIT_CPU, &found) != 0 || found.rlim_max == RLIM_INFINITY) return 0;
  return found.rlim_max;
}

MarkClock::time_point steady_now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return MarkClock::time_point(std::chrono::seconds(time.tv_sec) +
                               std::chrono::nanoseconds(time.tv_nsec));
}

// The forked process.
class Watcher {
 public:
  explicit Watcher(const Orders& orders) : orders_(orders) {}

  [[noreturn]] void run() {
    ::setsid();
    ::prctl(PR_SET_NAME, kProcessName);
    close_all_but(orders_.all_kept());
    write_fully(orders_.ready, "r");
    ::close(orders_.ready);
    drop_memory();
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    std::array<epoll_event, 64> events{};
    for (std::size_t live = orders_.watched; live > 0;) {
      // The kernel returns descriptors in the order in which they became ready.
      const int ready =
          ::epoll_wait(orders_.epoll, events.data(), static_cast<int>(events.size()), -1);
      if (ready < 0 && errno != EINTR) break;
      for (int i = 0; i < ready; ++i, --live) {
        const std::uint64_t what = events[static_cast<std::size_t>(i)].data.u64;
        if (what == kOver) ::_exit(0);
        take_end(static_cast<std::size_t>(what));
      }
    }
    ::_exit(0);
  }

 private:
  // Ends after a death or an explained end are a consequence, so the process leaves at the first
  // one.
  void take_end(std::size_t slot) const {
    ::epoll_ctl(orders_.epoll, EPOLL_CTL_DEL, orders_.lines[slot], nullptr);
    char word = 0;  // the lifeline's goodbye
    const bool said_goodbye = ::read(orders_.lines[slot], &word, 1) == 1;
    RankEnd end;
    end.mark = orders_.board.read_slot(slot, steady_now(), MarkBoard::Look::marks);
    end.mark.rank = orders_.ranks[slot];
    end.is_explained = orders_.board.is_end_explained(slot);
    const EndKind kind = kind_of(end);
    if (kind == EndKind::in_order || (kind == EndKind::death && said_goodbye)) return;
    if (kind == EndKind::death) {
      const std::int32_t process = orders_.board.process(slot).number;
      end.code = exit_code_of(process, orders_.ends[slot]);
      end.most_cpu_seconds = most_cpu_seconds();
      tell(end, process);
    }
    ::_exit(0);
  }

  void tell(const RankEnd& end, std::int32_t process) const {
    std::array<char, 512> sentence;
    const std::string_view text = write_death(end, orders_.host_text(), process, sentence);
    set_alarm();
    if (orders_.tells_line) {
      std::array<char, 2048> bytes;
      Text line(bytes);
      line << "coxswain[" << end.mark.rank.value() << "] error: " << text;
      write_fully(orders_.lines_to, line.view());
      // Written apart from the line: a folder that does not answer must not delay the line.
      const Advice& advice =
          has_save(orders_.saves.data()) ? orders_.with_save : orders_.without_save;
      write_fully(orders_.lines_to, advice.view());
    }
    if (orders_.folder >= 0) write_ending(end, process, text);
    ::alarm(0);
  }

  // All signals have been blocked since before the fork.
  static void set_alarm() {
    ::signal(SIGALRM, SIG_DFL);
    sigset_t alarms;
    ::sigemptyset(&alarms);
    ::sigaddset(&alarms, SIGALRM);
    ::sigprocmask(SIG_UNBLOCK, &alarms, nullptr);
    ::alarm(kWriteSeconds);
  }

  // REQUIRES: `text` needs no escapes in JSON.
  void write_ending(const RankEnd& end, std::int32_t process, std::string_view text) const {
    std::array<char, 64> name{};
    Text(std::span(name).first(name.size() - 1))
        << "ending.json." << end.mark.rank.value() << ".new";
    const int file = io::create_anew_at(orders_.folder, name.data());
    if (file < 0) return;
    std::array<char, 1024> bytes;
    Text json(bytes);
    json << "{\"rank\":" << end.mark.rank.value() << ",\"host\":\"" << orders_.host_text()
         << "\",\"process\":" << process << ",\"time\":" << std::int64_t{::time(nullptr)}
         << ",\"step\":" << end.mark.step.value();
    if (end.code) json << ",\"code\":" << *end.code;
    json << ",\"text\":\"" << text << "\"}\n";
    write_fully(file, json.view());
    ::close(file);
    ::renameat(orders_.folder, name.data(), orders_.folder, kEndingFile);
  }

  const Orders& orders_;
};

// --- In the job's own process.

Advice advice_of(const DeathWatchSetup& setup, const std::string& how_to_go_on) {
  std::string text;
  if (setup.world_size > 1)
    text += "; the launcher then ends the other ranks, and may name another process";
  text += concat(how_to_go_on, " (docs/endings.md)\n");
  Advice advice;
  advice.size = text.copy(advice.text.data(), advice.text.size());
  return advice;
}

void advise(const DeathWatchSetup& setup, Orders& orders) {
  const std::string saves = setup.saves.string();
  saves.copy(orders.saves.data(), orders.saves.size() - 1);
  orders.with_save = advice_of(
      setup, concat(". To continue: checkpoint.resume=on, from the newest save in ", saves));
  orders.without_save = advice_of(
      setup, saves.empty() ? ". No saves were kept: checkpoint.directory is not set"
                           : concat(". No save is in ", saves, " yet: start from the beginning"));
}

Orders orders_for(const NodeMarks& marks, const DeathWatchSetup& setup) {
  Orders orders(marks.board);
  std::ranges::copy(marks.ranks, orders.ranks.begin());
  orders.tells_line = setup.least != LogLevel::quiet;
  orders.host_size = setup.host.copy(orders.host.data(), orders.host.size());
  for (char& c : orders.host) {  // only characters that need no escape in JSON
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '.' || c == '-';
    if (!is_plain) c = '_';
  }
  advise(setup, orders);
  orders.lines_to = orders.keep(setup.lines_to);
  return orders;
}

bool wait_for(int descriptor, std::uint64_t what, const Orders& orders) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = what;
  return ::epoll_ctl(orders.epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

// Returns the slot of the process at the other end; kNowhere for a stranger.
std::size_t slot_of_peer(int line, const MarkBoard& board) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(line, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return kNowhere;
  const transport::ProcessId wanted{peer.pid, transport::this_process().space};
  for (std::size_t slot = 0; slot < board.ranks(); ++slot) {
    if (board.process(slot) == wanted) return slot;
  }
  return kNowhere;
}

// Accepts the lifelines of all ranks. From now on no end is missed, and ends are reported in order.
bool take_lifelines(int port, Orders& orders) {
  while (orders.watched < orders.board.ranks()) {
    pollfd called{.fd = port, .events = POLLIN, .revents = 0};
    if (::poll(&called, 1, kConnectMilliseconds) == 0) errno = ETIMEDOUT;
    if ((called.revents & POLLIN) == 0) return false;
    const int line = orders.keep(::accept4(port, nullptr, nullptr, SOCK_CLOEXEC));
    if (line < 0) return false;
    const std::size_t slot = slot_of_peer(line, orders.board);
    errno = EPERM;
    if (slot == kNowhere || orders.lines[slot] >= 0) return false;
    orders.lines[slot] = line;
    const std::int32_t process = orders.board.process(slot).number;
    orders.ends[slot] = orders.keep(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    if (!wait_for(line, slot, orders)) return false;
    ++orders.watched;
  }
  return true;
}

bool open_orders(int port, const DeathWatchSetup& setup, Orders& orders) {
  orders.lines.fill(-1);
  orders.folder =
      orders.keep(::open(setup.run_directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  orders.over = orders.keep(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (orders.over < 0) return false;
  orders.epoll = orders.keep(::epoll_create1(EPOLL_CLOEXEC));
  if (orders.epoll < 0) return false;
  return wait_for(orders.over, kOver, orders) && take_lifelines(port, orders);
}

// Forks without a signal to this process at the end of the new one, so that handlers and wait() of
// the program notice nothing. The new process keeps all signals blocked.
std::int32_t fork_watcher(const Orders& orders) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const long process = ::syscall(SYS_clone, 0L, 0L, 0L, 0L, 0L);
  if (process == 0) Watcher(orders).run();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);  // leaves errno unchanged
  return static_cast<std::int32_t>(process);
}

// Returns the new process after it has closed all inherited descriptors, which hold the job's
// locks. Returns 0 or less if there is none.
std::int32_t start_watcher(Orders& orders) {
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return -1;
  orders.ready = orders.keep(ready[1]);
  const std::int32_t process = fork_watcher(orders);
  ::close(ready[1]);
  --orders.kept_size;
  char word = 0;
  ssize_t size = 0;
  while (process > 0 && (size = ::read(ready[0], &word, 1)) < 0 && errno == EINTR) continue;
  ::close(ready[0]);
  return size == 1 ? process : -1;
}

}  // namespace

EndKind kind_of(const RankEnd& end) {
  if (end.is_explained) return EndKind::explained;
  return end.mark.activity == Activity::finished ? EndKind::in_order : EndKind::death;
}

Result<std::unique_ptr<DeathWatch>> DeathWatch::start(transport::LifelinePort port,
                                                      const NodeMarks& marks,
                                                      const DeathWatchSetup& setup) {
  if (marks.ranks.size() > kMostRanks)
    return unavailable("expected at most ", kMostRanks, " ranks on a node, ", "found ",
                       marks.ranks.size());
  Orders orders = orders_for(marks, setup);
  const bool is_open = open_orders(port.descriptor(), setup, orders);
  const std::int32_t process = is_open ? start_watcher(orders) : -1;
  const int error = errno;
  for (const int descriptor : orders.all_kept()) {
    const bool stays = descriptor == setup.lines_to || (descriptor == orders.over && process > 0);
    if (!stays && descriptor >= 0) ::close(descriptor);
  }
  if (process > 0) return std::unique_ptr<DeathWatch>(new DeathWatch(orders.over, process));
  return unavailable("expected a process that reports deaths of ranks, found none: ",
                     error == EAGAIN ? io::thread_limit_text() : io::errno_text(error));
}

DeathWatch::~DeathWatch() {
  end();
  ::close(over_);
}

void DeathWatch::end() const {
  static_cast<void>(::eventfd_write(over_, 1));
  for (int i = 0; i < 1000; ++i) {
    const int ended = ::waitpid(process_, nullptr, __WCLONE | WNOHANG);
    if (ended != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<std::string> read_ending(const std::filesystem::path& run_directory) {
  const auto bytes =
      io::read_file(run_directory / kEndingFile, kMostEndingBytes, io::Links::refused);
  if (bytes.status().code() == StatusCode::not_found) return std::string();
  if (!bytes.ok()) return bytes.status();
  const auto json = io::parse_json(*bytes, kMostEndingBytes);
  if (!json.ok()) return json.status();
  const io::Json* text = json->find("text");
  if (text == nullptr || text->kind != io::JsonKind::string)
    return data_loss(kEndingFile, ": expected an object with a text, found none");
  return text->string;
}

void forget_ending(const std::filesystem::path& run_directory) {
  std::error_code error;
  std::filesystem::remove(run_directory / kEndingFile, error);
}

}  // namespace cox::runtime
