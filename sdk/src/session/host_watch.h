// HostWatch looks at this rank's machine every few seconds and hands what it found to the
// coordinator as evidence for the causes of slowness (HostEvidence). A thread of its own reads the
// files, because some take a millisecond on large machines; the training thread only picks up what
// is ready, and never waits for it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/core/host_evidence.h"
#include "coordinator/core/units.h"
#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

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

class HostWatch final : public Actuator {
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
  };
  explicit HostWatch(Setup setup);
  ~HostWatch() override;

  const char* name() const override { return "host"; }
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

}  // namespace cox::detail
