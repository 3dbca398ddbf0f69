// This rank's machine, looked at by threads of their own, because some files take a millisecond on
// large machines: HostWatch for the coordinator, every few seconds, and HostRecorder for the host
// timeline, some times a second.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/core/host_evidence.h"
#include "coordinator/core/host_sample.h"
#include "coordinator/core/stall.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "metrics/records/run_store.h"
#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

// A file of /proc or /sys that is read again and again; it stays open.
class KeptFile {
 public:
  explicit KeptFile(const std::filesystem::path& path);
  KeptFile(KeptFile&& other) noexcept;
  KeptFile& operator=(KeptFile&&) = delete;
  ~KeptFile();

  bool is_there() const { return descriptor_ >= 0; }
  // Puts the content into `text`, up to 64 KiB; empty where it cannot be read.
  void read(std::string& text) const;
  // Returns the content of a file that is not kept.
  static std::string read_once(const std::filesystem::path& path);

 private:
  int descriptor_;
};

// Reads the machine's texts below a root folder; not thread-safe. A file is read up to 64 KiB.
class HostFiles {
 public:
  // `root`: "/" but in tests.
  explicit HostFiles(std::filesystem::path root);
  HostTexts read() const;

 private:
  std::filesystem::path root_;
  std::vector<std::string> group_cpu_;  // where the group's CPU account may be
};

// HostWatch hands what it found to the coordinator as evidence for the causes of slowness
// (HostEvidence). The training thread only picks up what is ready, and never waits for it.
class HostWatch final : public Actuator, public Reporting {
 public:
  struct Setup {
    std::filesystem::path root = "/";
    std::string host;
    std::int32_t cores = 1;
    std::chrono::milliseconds every{5000};
    Seconds repeat_every{30};  // what has not changed is sent that often
    // The error of this node's clock against rank 0's, asked for on the training thread; may be
    // empty.
    std::function<Seconds()> clock_error{};
    // Gets the reason why the thread cannot start or ends early.
    std::function<void(const Status&)> on_trouble{};
  };
  explicit HostWatch(Setup setup);
  ~HostWatch() override;

  // Returns the newest evidence if it is worth a report.
  Fragment next_fragment() override;

 private:
  void run();

  const Setup setup_;
  HostFiles files_;
  std::atomic<bool> has_news_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable woken_;
  bool is_over_ = false;
  HostEvidence newest_;
  std::thread thread_;
};

// The texts of a node, below a root folder; one thread.
class NodeFiles {
 public:
  // `root`: "/" but in tests.
  explicit NodeFiles(const std::filesystem::path& root);
  const NodeTexts& read();
  // Cores that the node's processes may use.
  double cores() const { return cores_; }

 private:
  NodeTexts texts_;
  KeptFile stat_, meminfo_, diskstats_, net_dev_, group_memory_, group_limit_;
  double cores_;
};

// What NVIDIA's management library says of the GPUs of this machine. It is loaded while the program
// runs, where the driver brought it; nothing is linked against it. One thread at a time.
class Nvml {
 public:
  // Null where there is no such library, or it does not work. Takes up to some seconds.
  static std::unique_ptr<Nvml> load(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::size_t gpus() const { return devices_.size(); }
  // What a GPU does not tell is not known.
  void read(std::vector<GpuSample>& out) const;

 private:
  struct Calls;
  explicit Nvml(std::unique_ptr<Calls> calls);

  std::unique_ptr<Calls> calls_;
  std::vector<void*> devices_;
};

// How often looks come, in periods: a power of two.
class LookSpacing {
 public:
  static constexpr double kMostShare = 0.002;  // of a core, for looks

  explicit LookSpacing(double period_seconds) : period_seconds_(period_seconds) {}
  double seconds() const { return period_seconds_ * stride_; }
  // Learns what a look took.
  void note(double cost_seconds);
  // From now on no more than half as often as now.
  void halve();

 private:
  double period_seconds_;
  double mean_cost_ = 0;  // of newer looks more than of older ones
  double stride_ = 1;
  double least_stride_ = 1;
};

// HostFile is a rank's part of the host timeline on the disk. It collects lines for some seconds
// before it writes them, and stays below a largest size. One thread.
class HostFile {
 public:
  // Errors: those of AppendFile.
  static Result<HostFile> open(std::filesystem::path path, std::uint64_t most_bytes);

  // Returns false once the file cannot be written to.
  bool is_open() const { return file_.has_value(); }
  void add(const std::string& lines) { lines_ += lines; }
  // Writes what was added, if the last time was some seconds ago.
  Status write_in_time();
  Status write();

  bool is_full() const { return bytes_ > most_bytes_; }
  // Leaves out every second sample until the file is well below its largest size; `spacing` is
  // halved as often.
  Status thin_out(LookSpacing& spacing);

 private:
  HostFile(std::filesystem::path path, std::uint64_t most_bytes, metrics::AppendFile file);

  const std::filesystem::path path_;
  const std::uint64_t most_bytes_;
  std::optional<metrics::AppendFile> file_;
  std::uint64_t bytes_ = 0;  // in the file
  std::string lines_;        // that are still to be written
  double written_at_ = 0;
};

// HostRecorder writes a rank's part of the host timeline (host.jsonl, docs/run-directory.md): what
// its process used and what its training thread did, some times a second, and of the lowest rank of
// a node what the machine did. A thread of its own reads and writes; the training thread has no
// part in it, so nothing that goes wrong here costs a step.
//
//   /proc, the rank's mark -> HostSample -> records/host_lines.h
//
// Samples are taken at whole multiples of the period, by the system's clock, so that those of all
// ranks tell of the same moments. Looking takes at most kMostShare of a core: where a look takes
// longer, looks come less often. The file has a largest size: when it is reached, every second
// sample is left out, and from then on samples are taken half as often.
class HostRecorder {
 public:
  struct Setup {
    std::filesystem::path file;
    std::filesystem::path root = "/";
    double period_seconds = 0.1;
    std::int32_t node = 0;                            // the lowest rank of the node
    bool has_node = false;                            // this rank tells of the machine, too
    std::function<RankMark()> mark;                   // called on the recorder's thread
    std::function<void(const Status&)> on_trouble{};  // likewise, once
    std::uint64_t most_bytes = std::uint64_t{32} << 20;
    std::string nvml = "libnvidia-ml.so.1";
  };

  // Blocks on the disk. Errors: those of AppendFile; resource_exhausted without a thread.
  static Result<std::unique_ptr<HostRecorder>> start(Setup setup);
  // Takes a last sample and writes what is left.
  ~HostRecorder();
  HostRecorder(const HostRecorder&) = delete;
  HostRecorder& operator=(const HostRecorder&) = delete;

  std::uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }
  // CPU time of the thread so far.
  double cpu_seconds() const { return cpu_seconds_.load(std::memory_order_relaxed); }

 private:
  HostRecorder(Setup setup, HostFile file);
  void run();
  void look(std::optional<HostStart> start);
  HostStart start_of_process() const;
  void trouble(const Status& status);

  const Setup setup_;
  HostFile file_;
  LookSpacing spacing_;
  std::optional<NodeFiles> node_;
  std::unique_ptr<Nvml> nvml_;
  std::vector<GpuSample> gpus_;
  KeptFile memory_;
  std::string text_;  // of memory_
  bool is_in_trouble_ = false;
  std::atomic<std::uint64_t> looks_{0};
  std::atomic<double> cpu_seconds_{0};

  std::mutex mutex_;  // guards is_over_
  std::condition_variable woken_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cox::detail
