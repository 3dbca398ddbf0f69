#include "sdk/src/session/host_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <utility>

namespace cox::detail {
namespace {

constexpr std::size_t kMostText = std::size_t{64} << 10;

// A pipe or a device in a file's place is not waited for.
std::string text_of(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return {};
  std::string text;
  std::array<char, 4096> part{};
  while (text.size() < kMostText) {
    const ssize_t got = ::read(file, part.data(), part.size());
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  ::close(file);
  return text;
}

}  // namespace

HostFiles::HostFiles(std::filesystem::path root) : root_(std::move(root)) {
  group_cpu_ = group_cpu_files(text_of(root_ / "proc/self/cgroup"));
}

HostTexts HostFiles::read() const {
  const std::filesystem::path clocks = root_ / "sys/devices/system/cpu/cpu0/cpufreq";
  HostTexts texts;
  texts.stat = text_of(root_ / "proc/stat");
  texts.loadavg = text_of(root_ / "proc/loadavg");
  texts.largest_clock = text_of(clocks / "cpuinfo_max_freq");
  // Long, and of no use alone.
  if (!texts.largest_clock.empty()) texts.cpuinfo = text_of(root_ / "proc/cpuinfo");
  texts.clock = text_of(clocks / "scaling_cur_freq");
  texts.cpu_pressure = text_of(root_ / "proc/pressure/cpu");
  texts.memory_pressure = text_of(root_ / "proc/pressure/memory");
  texts.io_pressure = text_of(root_ / "proc/pressure/io");
  for (const std::string& file : group_cpu_) {
    texts.group_cpu = text_of(root_ / file.substr(1));
    if (!texts.group_cpu.empty()) break;
  }
  return texts;
}

HostWatch::HostWatch(Setup setup)
    : setup_(std::move(setup)), files_(setup_.root), thread_([this] { run(); }) {}

HostWatch::~HostWatch() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  woken_.notify_one();
  thread_.join();
}

void HostWatch::run() {
  using Steady = std::chrono::steady_clock;
  HostReading before = read_host(files_.read());
  HostEvidence sent;
  Steady::time_point repeat{};
  std::unique_lock lock(mutex_);
  while (!woken_.wait_for(lock, setup_.every, [this] { return is_over_; })) {
    lock.unlock();
    const HostReading now = read_host(files_.read());
    const HostEvidence evidence = evidence_between(before, now, setup_.host, setup_.cores);
    before = now;
    lock.lock();
    if (Steady::now() < repeat && !differs_noticeably(evidence, sent)) continue;
    newest_ = sent = evidence;
    has_news_ = true;
    repeat = Steady::now() + std::chrono::duration_cast<Steady::duration>(setup_.repeat_every);
  }
}

Fragment HostWatch::next_fragment() {
  if (!has_news_.load(std::memory_order_relaxed)) return {};
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};
  has_news_ = false;
  HostEvidence evidence = newest_;
  if (setup_.clock_error)
    evidence.clock_error_seconds = static_cast<float>(setup_.clock_error().count());
  return make_fragment(evidence);
}

}  // namespace cox::detail
