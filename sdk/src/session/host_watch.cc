#include "sdk/src/session/host_watch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <system_error>
#include <utility>

#include "coordinator/core/units.h"
#include "coordinator/io/thread.h"
#include "metrics/records/host_lines.h"

namespace cox::detail {
namespace {

constexpr std::size_t kMostText = std::size_t{64} << 10;

namespace fs = std::filesystem;

constexpr double kWriteSeconds = 1;     // seconds that a crash loses
constexpr std::uint64_t kGpuLooks = 5;  // NVML's figures are means of a sixth of a second and more
constexpr double kShortestPeriod = 0.01;

double unix_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

double clock_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double ticks_a_second() {
  return static_cast<double>(std::max(1L, sysconf(_SC_CLK_TCK)));
}

// Returns the first file that can be opened.
KeptFile first_of(const fs::path& root, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    KeptFile opened(root / file.substr(1));
    if (opened.is_there()) return opened;
  }
  return KeptFile(fs::path());
}

KeptFile group_file(const fs::path& root, const char* name) {
  return first_of(root, group_files(KeptFile::read_once(root / "proc/self/cgroup"), name));
}

double usable_cores(const fs::path& root) {
  std::string text;
  group_file(root, "cpu.max").read(text);
  const auto online = static_cast<double>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const double granted = granted_cores(text);
  return is_known(granted) ? std::min(granted, online) : online;
}

// Returns the second field of /proc/self/statm, in pages, as bytes.
double resident_bytes(std::string_view statm) {
  const std::size_t space = std::min(statm.find(' ') + 1, statm.size());
  std::uint64_t pages = 0;
  const auto read = std::from_chars(statm.data() + space, statm.data() + statm.size(), pages);
  if (read.ec != std::errc()) return kUnknown;
  return static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

constexpr unsigned int kMostDevices = 16;

}  // namespace

// Does not block on a pipe or a device in place of a file.
KeptFile::KeptFile(const std::filesystem::path& path)
    : descriptor_(path.empty() ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}

KeptFile::KeptFile(KeptFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

KeptFile::~KeptFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void KeptFile::read(std::string& text) const {
  std::array<char, 8192> part;
  text.clear();
  while (descriptor_ >= 0 && text.size() < kMostText) {
    const ssize_t got =
        ::pread(descriptor_, part.data(), part.size(), static_cast<off_t>(text.size()));
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

std::string KeptFile::read_once(const std::filesystem::path& path) {
  std::string text;
  KeptFile(path).read(text);
  return text;
}

HostFiles::HostFiles(std::filesystem::path root) : root_(std::move(root)) {
  group_cpu_ = group_cpu_files(KeptFile::read_once(root_ / "proc/self/cgroup"));
}

HostTexts HostFiles::read() const {
  const std::filesystem::path clocks = root_ / "sys/devices/system/cpu/cpu0/cpufreq";
  HostTexts texts;
  texts.stat = KeptFile::read_once(root_ / "proc/stat");
  texts.loadavg = KeptFile::read_once(root_ / "proc/loadavg");
  texts.largest_clock = KeptFile::read_once(clocks / "cpuinfo_max_freq");
  // cpuinfo is long, and useless without the clock's limit.
  if (!texts.largest_clock.empty()) texts.cpuinfo = KeptFile::read_once(root_ / "proc/cpuinfo");
  texts.clock = KeptFile::read_once(clocks / "scaling_cur_freq");
  texts.cpu_pressure = KeptFile::read_once(root_ / "proc/pressure/cpu");
  texts.memory_pressure = KeptFile::read_once(root_ / "proc/pressure/memory");
  texts.io_pressure = KeptFile::read_once(root_ / "proc/pressure/io");
  for (const std::string& file : group_cpu_) {
    texts.group_cpu = KeptFile::read_once(root_ / file.substr(1));
    if (!texts.group_cpu.empty()) break;
  }
  return texts;
}

HostWatch::HostWatch(Setup setup) : setup_(std::move(setup)), files_(setup_.root) {
  auto started = io::start_thread(
      "host watch", [this] { run(); }, setup_.on_trouble);
  if (started.ok()) thread_ = *std::move(started);
  if (!started.ok() && setup_.on_trouble) setup_.on_trouble(started.status());
}

HostWatch::~HostWatch() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
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

NodeFiles::NodeFiles(const fs::path& root)
    : stat_(root / "proc/stat"),
      meminfo_(root / "proc/meminfo"),
      diskstats_(root / "proc/diskstats"),
      net_dev_(root / "proc/net/dev"),
      group_memory_(group_file(root, "memory.current")),
      group_limit_(group_file(root, "memory.max")),
      cores_(usable_cores(root)) {}

const NodeTexts& NodeFiles::read() {
  stat_.read(texts_.stat);
  meminfo_.read(texts_.meminfo);
  diskstats_.read(texts_.diskstats);
  net_dev_.read(texts_.net_dev);
  group_limit_.read(texts_.group_limit);
  group_memory_.read(texts_.group_memory);
  return texts_;
}

struct Nvml::Calls {
  // The structs have NVML's layout.
  struct Utilization {
    unsigned int gpu = 0;  // percent
    unsigned int memory = 0;
  };
  struct Memory {
    unsigned long long total = 0;
    unsigned long long free = 0;
    unsigned long long used = 0;
  };

  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*handle)(unsigned int, void**) = nullptr;
  int (*utilization)(void*, Utilization*) = nullptr;
  int (*memory)(void*, Memory*) = nullptr;

  explicit Calls(const std::string& name) : library(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(count, "nvmlDeviceGetCount_v2");
    find(handle, "nvmlDeviceGetHandleByIndex_v2");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(memory, "nvmlDeviceGetMemoryInfo");
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  ~Calls() {
    if (library != nullptr) dlclose(library);
  }

  bool are_there() const {
    return init != nullptr && shutdown != nullptr && count != nullptr && handle != nullptr &&
           utilization != nullptr && memory != nullptr;
  }

 private:
  template <class Call>
  void find(Call& call, const char* name) const {
    if (library != nullptr) call = reinterpret_cast<Call>(dlsym(library, name));
  }
};

std::unique_ptr<Nvml> Nvml::load(const std::string& library) {
  auto calls = std::make_unique<Calls>(library);
  if (!calls->are_there() || calls->init() != 0) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(calls)));
}

Nvml::Nvml(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {
  unsigned int count = 0;
  if (calls_->count(&count) != 0) return;
  for (unsigned int i = 0; i < count && i < kMostDevices; ++i) {
    void* device = nullptr;
    if (calls_->handle(i, &device) == 0) devices_.push_back(device);
  }
}

Nvml::~Nvml() {
  calls_->shutdown();
}

void Nvml::read(std::vector<GpuSample>& out) const {
  out.clear();
  for (void* device : devices_) {
    GpuSample& gpu = out.emplace_back();
    Calls::Utilization use;
    if (calls_->utilization(device, &use) == 0 && use.gpu <= 100)
      gpu.busy_ratio = static_cast<double>(use.gpu) / 100;
    Calls::Memory memory;
    if (calls_->memory(device, &memory) == 0) gpu.memory_bytes = static_cast<double>(memory.used);
  }
}

// Raises the rate of looks only if looks would then use half of their limit.
void LookSpacing::note(double cost_seconds) {
  constexpr double kNewest = 0.1;
  mean_cost_ += kNewest * (cost_seconds - mean_cost_);
  while (mean_cost_ > kMostShare * seconds()) stride_ *= 2;
  while (stride_ > least_stride_ && 4 * mean_cost_ < kMostShare * seconds()) stride_ /= 2;
}

void LookSpacing::halve() {
  least_stride_ *= 2;
  stride_ = std::max(stride_, least_stride_);
}

Result<HostFile> HostFile::open(fs::path path, std::uint64_t most_bytes) {
  auto file = metrics::AppendFile::open(path);
  if (!file.ok()) return file.status();
  return HostFile(std::move(path), most_bytes, *std::move(file));
}

// A line break ends a line that an earlier process may have left incomplete.
HostFile::HostFile(fs::path path, std::uint64_t most_bytes, metrics::AppendFile file)
    : path_(std::move(path)), most_bytes_(most_bytes), file_(std::move(file)) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path_, error);
  bytes_ = error ? 0 : bytes;
  if (bytes_ > 0) lines_ = "\n";
}

Status HostFile::write_in_time() {
  return unix_seconds() - written_at_ >= kWriteSeconds ? write() : ok_status();
}

Status HostFile::write() {
  written_at_ = unix_seconds();
  if (!file_ || lines_.empty()) return ok_status();
  const Status written = file_->append(lines_);
  if (written.ok()) bytes_ += lines_.size();
  lines_.clear();
  return written;
}

Status HostFile::thin_out(LookSpacing& spacing) {
  constexpr int kMostTimes = 32;
  for (int i = 0; i < kMostTimes && bytes_ > most_bytes_ / 4 * 3; ++i) {
    spacing.halve();
    const Status thinned = io::thin_out(path_, spacing.seconds());
    std::error_code error;
    bytes_ = fs::file_size(path_, error);
    if (thinned.ok() && !error) continue;
    file_.reset();  // the file would grow without limit
    return thinned;
  }
  file_.reset();
  auto file = metrics::AppendFile::open(path_);
  if (file.ok()) file_.emplace(*std::move(file));
  return file.status();
}

Result<std::unique_ptr<HostRecorder>> HostRecorder::start(Setup setup) {
  auto file = HostFile::open(setup.file, setup.most_bytes);
  if (!file.ok()) return file.status();
  setup.period_seconds = std::max(setup.period_seconds, kShortestPeriod);
  std::unique_ptr<HostRecorder> made(new HostRecorder(std::move(setup), *std::move(file)));
  HostRecorder* raw = made.get();
  auto started = io::start_thread(
      "samples", [raw] { raw->run(); }, [raw](const Status& trouble) { raw->trouble(trouble); });
  if (!started.ok()) return started.status();
  made->thread_ = *std::move(started);
  return made;
}

HostRecorder::HostRecorder(Setup setup, HostFile file)
    : setup_(std::move(setup)),
      file_(std::move(file)),
      spacing_(setup_.period_seconds),
      memory_(setup_.root / "proc/self/statm") {}

HostRecorder::~HostRecorder() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void HostRecorder::run() {
  if (setup_.has_node) {
    node_.emplace(setup_.root);
    nvml_ = Nvml::load(setup_.nvml);
  }
  look(start_of_process());
  std::unique_lock lock(mutex_);
  while (file_.is_open()) {
    const double spacing = spacing_.seconds();
    const double now = unix_seconds();
    double next = (std::floor(now / spacing) + 1) * spacing;
    if (next - now < spacing / 4) next += spacing;  // woken a little early
    if (woken_.wait_for(lock, std::chrono::duration<double>(next - now),
                        [this] { return is_over_; }))
      break;
    lock.unlock();
    const double before = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    look(std::nullopt);
    trouble(file_.write_in_time());
    const double after = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    spacing_.note(after - before);
    if (file_.is_full()) trouble(file_.thin_out(spacing_));
    cpu_seconds_.store(clock_seconds(CLOCK_THREAD_CPUTIME_ID), std::memory_order_relaxed);
    lock.lock();
  }
  lock.unlock();
  look(std::nullopt);
  trouble(file_.write());
}

void HostRecorder::look(std::optional<HostStart> start) {
  HostSample sample;
  const RankMark mark = setup_.mark();
  sample.timestamp = unix_seconds();
  sample.step = static_cast<std::int64_t>(mark.step.value());
  sample.activity = mark.activity;
  sample.activity_seconds = mark.activity_seconds;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  sample.user_seconds = seconds_of(usage.ru_utime);
  sample.system_seconds = seconds_of(usage.ru_stime);
  memory_.read(text_);
  sample.resident_bytes = resident_bytes(text_);
  if (node_) sample.node = read_node(node_->read(), ticks_a_second());
  if (nvml_ && looks() % kGpuLooks == 0) {
    nvml_->read(gpus_);
    sample.gpus = gpus_;
  }
  sample.start = start;
  file_.add(io::host_line(sample));
  looks_.fetch_add(1, std::memory_order_relaxed);
}

HostStart HostRecorder::start_of_process() const {
  HostStart out;
  out.period_seconds = setup_.period_seconds;
  out.node = setup_.node;
  if (node_) out.cores = node_->cores();
  if (nvml_) out.gpus = static_cast<std::int32_t>(nvml_->gpus());
  const auto ticks = start_ticks_in(KeptFile::read_once(setup_.root / "proc/self/stat"));
  if (!ticks) return out;
  const double age = clock_seconds(CLOCK_BOOTTIME) - static_cast<double>(*ticks) / ticks_a_second();
  if (age >= 0) out.started_seconds = unix_seconds() - age;
  return out;
}

void HostRecorder::trouble(const Status& status) {
  if (status.ok() || is_in_trouble_) return;
  is_in_trouble_ = true;
  if (setup_.on_trouble) setup_.on_trouble(status.with_context("host timeline"));
}

}  // namespace cox::detail
