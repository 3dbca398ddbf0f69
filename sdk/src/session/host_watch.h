// Observes this rank's machine on threads of its own, because some files take a millisecond to read
// on large machines. HostWatch sends evidence to the coordinator every few seconds. HostRecorder
// writes the host timeline, several times a second.
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

// KeptFile is a file of /proc or /sys that stays open for repeated reads.
class KeptFile {
 public:
  explicit KeptFile(const std::filesystem::path& path);
  KeptFile(KeptFile&& other) noexcept;
  KeptFile& operator=(KeptFile&&) = delete;
  ~KeptFile();

  bool is_there() const { return descriptor_ >= 0; }
  // Reads up to 64 KiB of content into `text`. Empties `text` if the file cannot be read.
  void read(std::string& text) const;
  // Returns the content of a file without keeping it open.
  static std::string read_once(const std::filesystem::path& path);

 private:
  int descriptor_;
};

// HostFiles reads the machine's texts below a root folder, up to 64 KiB a file. Not thread-safe.
class HostFiles {
 public:
  // `root` is "/" except in tests.
  explicit HostFiles(std::filesystem::path root);
  HostTexts read() const;

 private:
  std::filesystem::path root_;
  std::vector<std::string> group_cpu_;  // possible places of the group's CPU account
};

// HostWatch hands its findings to the coordinator as evidence for the causes of slowness
// (HostEvidence). The training thread only collects evidence that is ready, and never waits for it.
class HostWatch final : public Actuator, public Reporting {
 public:
  struct Setup {
    std::filesystem::path root = "/";
    std::string host;
    std::int32_t cores = 1;
    std::chrono::milliseconds every{5000};
    Seconds repeat_every{30};  // interval for sending unchanged evidence
    // Returns the error of this node's clock against rank 0's. Called on the training thread; may
    // be empty.
    std::function<Seconds()> clock_error{};
    // Receives the reason if the thread cannot start or ends early.
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
  std::mutex mutex_;  // guards the members below
  std::condition_variable woken_;
  bool is_over_ = false;
  HostEvidence newest_;
  std::thread thread_;
};

// NodeFiles reads the texts of a node, below a root folder. One thread.
class NodeFiles {
 public:
  // `root` is "/" except in tests.
  explicit NodeFiles(const std::filesystem::path& root);
  const NodeTexts& read();
  // Returns the number of cores that the node's processes may use.
  double cores() const { return cores_; }

 private:
  NodeTexts texts_;
  KeptFile stat_, meminfo_, diskstats_, net_dev_, group_memory_, group_limit_;
  double cores_;
};

// Nvml reads the GPUs of this machine through NVIDIA's management library. The library is loaded at
// run time, where the driver installed it; the SDK is not linked against the library. One thread at
// a time.
class Nvml {
 public:
  // Returns null if the library is missing or does not work. Takes up to some seconds.
  static std::unique_ptr<Nvml> load(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::size_t gpus() const { return devices_.size(); }
  // Appends a sample of each GPU. Fields that a GPU does not report are left unknown.
  void read(std::vector<GpuSample>& out) const;

 private:
  struct Calls;
  explicit Nvml(std::unique_ptr<Calls> calls);

  std::unique_ptr<Calls> calls_;
  std::vector<void*> devices_;
};

// LookSpacing chooses the interval between two looks at the machine, in periods: a power of two.
class LookSpacing {
 public:
  static constexpr double kMostShare = 0.002;  // share of a core, for looks

  explicit LookSpacing(double period_seconds) : period_seconds_(period_seconds) {}
  double seconds() const { return period_seconds_ * stride_; }
  // Records the cost of a look and adapts the interval.
  void note(double cost_seconds);
  // Halves the frequency of looks: doubles the minimum interval, and raises the present interval to
  // the minimum.
  void halve();

 private:
  double period_seconds_;
  double mean_cost_ = 0;  // weights newer looks more
  double stride_ = 1;
  double least_stride_ = 1;
};

// HostFile is a rank's part of the host timeline on the disk. Lines are collected for some seconds
// before a write, and the file stays below a size limit. One thread.
class HostFile {
 public:
  // Errors: those of AppendFile.
  static Result<HostFile> open(std::filesystem::path path, std::uint64_t most_bytes);

  // Returns false once the file cannot be written to.
  bool is_open() const { return file_.has_value(); }
  void add(const std::string& lines) { lines_ += lines; }
  // Writes the added lines, if the last write was some seconds ago.
  Status write_in_time();
  Status write();

  bool is_full() const { return bytes_ > most_bytes_; }
  // Removes every second sample until the file is well below its size limit. Doubles the minimum
  // interval of `spacing` once for each removal.
  Status thin_out(LookSpacing& spacing);

 private:
  HostFile(std::filesystem::path path, std::uint64_t most_bytes, metrics::AppendFile file);

  const std::filesystem::path path_;
  const std::uint64_t most_bytes_;
  std::optional<metrics::AppendFile> file_;
  std::uint64_t bytes_ = 0;  // in the file
  std::string lines_;        // not yet written
  double written_at_ = 0;
};

// HostRecorder writes a rank's part of the host timeline (host.jsonl, docs/run-directory.md).
// Several times a second HostRecorder samples the process's use of the machine and the training
// thread's activity. The lowest rank of a node also samples the machine. A thread of its own reads
// and writes, so no failure here costs the training thread a step.
//
//   /proc, the rank's mark -> HostSample -> records/host_lines.h
//
// Samples are taken at whole multiples of the period, by the system's clock, so samples of all
// ranks describe the same moments. Looks use at most kMostShare of a core: if a look takes longer,
// looks become less frequent. When the file reaches its size limit, every second sample is removed,
// and the minimum interval between samples doubles.
class HostRecorder {
 public:
  struct Setup {
    std::filesystem::path file;
    std::filesystem::path root = "/";
    double period_seconds = 0.1;
    std::int32_t node = 0;                            // the lowest rank of the node
    bool has_node = false;                            // this rank samples the machine, too
    std::function<RankMark()> mark;                   // called on the recorder's thread
    std::function<void(const Status&)> on_trouble{};  // called on the recorder's thread, once
    std::uint64_t most_bytes = std::uint64_t{32} << 20;
    std::string nvml = "libnvidia-ml.so.1";
  };

  // Blocks on the disk. Errors: those of AppendFile; resource_exhausted without a thread.
  static Result<std::unique_ptr<HostRecorder>> start(Setup setup);
  // Takes a last sample and writes the remaining lines.
  ~HostRecorder();
  HostRecorder(const HostRecorder&) = delete;
  HostRecorder& operator=(const HostRecorder&) = delete;

  std::uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }
  // Returns the CPU time of the recorder's thread so far.
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
  std::string text_;  // content of memory_
  bool is_in_trouble_ = false;
  std::atomic<std::uint64_t> looks_{0};
  std::atomic<double> cpu_seconds_{0};

  std::mutex mutex_;  // guards is_over_
  std::condition_variable woken_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace cox::detail
