#include "metrics/records/host_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "metrics/records/step_lines.h"

namespace cox::io {
namespace {

using diagnosis::HostTrack;
using diagnosis::StepLine;
using diagnosis::StepSection;
using diagnosis::TrackSample;

constexpr std::size_t kPieceBytes = std::size_t{1} << 16;
constexpr double kMostUnixSeconds = 1e11;
constexpr double kMostHostNumber = 0x1p63;

struct NodeField {
  const char* name;
  double NodeCounters::*value;
  int decimals;
};
constexpr std::array<NodeField, 11> kNodeFields = {
    {{"node_user", &NodeCounters::user_seconds, 2},
     {"node_system", &NodeCounters::system_seconds, 2},
     {"node_iowait", &NodeCounters::iowait_seconds, 2},
     {"node_steal", &NodeCounters::steal_seconds, 2},
     {"memory_used", &NodeCounters::memory_used_bytes, 0},
     {"memory_available", &NodeCounters::memory_available_bytes, 0},
     {"swap_used", &NodeCounters::swap_used_bytes, 0},
     {"disk_read", &NodeCounters::disk_read_bytes, 0},
     {"disk_written", &NodeCounters::disk_written_bytes, 0},
     {"network_received", &NodeCounters::network_received_bytes, 0},
     {"network_sent", &NodeCounters::network_sent_bytes, 0}}};

// The first member of every line. Thinning parses only this number.
constexpr std::string_view kTimestamp = "{\"timestamp\":";
constexpr std::string_view kStarted = "\"started\":";

void put(std::string& line, std::string_view name, double value, int decimals) {
  if (!std::isfinite(value)) return;
  line += ",\"";
  line += name;
  line += "\":" + fixed(value, decimals);
}

void put_start(std::string& line, const HostStart& start) {
  // Always written, because readers identify the line by this member.
  put(line, "started", is_known(start.started_seconds) ? start.started_seconds : 0, 2);
  put(line, "period", start.period_seconds, 6);
  put(line, "node", start.node, 0);
  put(line, "cores", start.cores, 2);
  put(line, "gpus", start.gpus, 0);
}

std::string gpu_name(std::size_t gpu, const char* figure) {
  return fmt::format("gpu{}{}", gpu, figure);
}

// Returns a number of the line between `least` and `most`, else kUnknown.
double number(const StepLine& line, std::string_view name, double least, double most) {
  const double value = value_in(line, StepSection::own, name);
  return value >= least && value <= most ? value : kUnknown;
}

double number(const StepLine& line, std::string_view name) {
  return number(line, name, 0, kMostHostNumber);
}

void read_node(const StepLine& line, HostSample& out) {
  NodeCounters node;
  bool is_there = false;
  for (const NodeField& field : kNodeFields) {
    node.*field.value = number(line, field.name);
    is_there = is_there || is_known(node.*field.value);
  }
  if (is_there) out.node = node;
  for (std::size_t g = 0; g < kMostGpus; ++g) {
    const GpuSample gpu{number(line, gpu_name(g, "_busy"), 0, 1),
                        number(line, gpu_name(g, "_memory"))};
    if (!is_known(gpu.busy_ratio) && !is_known(gpu.memory_bytes)) break;
    out.gpus.push_back(gpu);
  }
}

std::optional<HostStart> start_of(const StepLine& line) {
  const double started = number(line, "started", 0, kMostUnixSeconds);
  if (!is_known(started)) return std::nullopt;
  constexpr double kMostRank = 1e9;
  const auto whole = [&line](std::string_view name, double otherwise) {
    const double value = number(line, name, otherwise, kMostRank);
    return static_cast<std::int32_t>(is_known(value) ? value : otherwise);
  };
  HostStart out;
  out.started_seconds = started > 0 ? started : kUnknown;
  const double period = number(line, "period", 0, kMostUnixSeconds);
  out.period_seconds = is_known(period) ? period : 0;
  out.node = whole("node", 0);
  out.gpus = whole("gpus", -1);
  out.cores = number(line, "cores");
  return out;
}

// Returns whether the moment is near a multiple of the period. Assumes samples half a period apart.
bool is_on_grid(double moment, double period_seconds) {
  const double nearest = std::round(moment / period_seconds) * period_seconds;
  return std::fabs(moment - nearest) < period_seconds / 4;
}

// Keeps the members that idle_time.h reads. Doubles the grid's period as samples accumulate.
class TrackBuilder {
 public:
  TrackBuilder(std::int32_t rank, std::size_t most) : most_(most) { out_.rank = rank; }

  void take(const HostSample& sample) {
    const bool is_start = sample.start || out_.samples.empty();
    if (sample.start && sample.start->period_seconds > 0)
      period_ = std::max(period_, sample.start->period_seconds);
    if (!is_start && is_thinned_ && !is_on_grid(sample.timestamp, period_)) return;
    if (is_start) add_start(sample);
    const double since = is_known(sample.activity_seconds) ? sample.activity_seconds : 0;
    out_.samples.push_back({sample.timestamp, sample.cpu_seconds(), sample.timestamp - since,
                            sample.step, sample.activity});
    if (out_.samples.size() > most_) thin_out();
  }
  HostTrack finish() { return std::move(out_); }

 private:
  void add_start(const HostSample& sample) {
    diagnosis::HostTrackStart start{out_.samples.size(), sample.timestamp, 0};
    if (sample.start && sample.start->started_seconds < sample.timestamp)
      start.started_seconds = sample.start->started_seconds;
    if (sample.start) start.node = sample.start->node;
    out_.starts.push_back(start);
  }

  void thin_out() {
    period_ *= 2;
    is_thinned_ = true;
    std::vector<TrackSample> kept;
    std::size_t next = 0;  // index in the starts
    for (std::size_t i = 0; i < out_.samples.size(); ++i) {
      const bool is_start = next < out_.starts.size() && out_.starts[next].first == i;
      if (is_start) out_.starts[next++].first = kept.size();
      if (is_start || is_on_grid(out_.samples[i].seconds, period_)) kept.push_back(out_.samples[i]);
    }
    // No grid fits, so the first samples serve as well as any.
    if (kept.size() > most_) {
      kept.resize(most_ / 2);
      std::erase_if(out_.starts, [&](const auto& start) { return start.first >= kept.size(); });
    }
    out_.samples = std::move(kept);
  }

  HostTrack out_;
  std::size_t most_;
  double period_ = 0.1;
  bool is_thinned_ = false;
};

// Passes whole lines of a file, each with its line feed. A torn last line is left out.
Status each_line(const InputFile& file, const std::function<Status(std::string_view)>& take) {
  std::string line;
  return file.each_piece(kPieceBytes, [&](std::string_view rest) {
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      const bool is_whole = end != std::string_view::npos;
      line.append(rest.substr(0, is_whole ? end + 1 : end));
      rest.remove_prefix(is_whole ? end + 1 : rest.size());
      if (line.size() > kMaxStepLineBytes)
        return data_loss("expected one line for each sample, found ", line.size(),
                         " bytes without a line end");
      if (!is_whole) continue;
      if (Status taken = take(line); !taken.ok()) return taken;
      line.clear();
    }
    return ok_status();
  });
}

}  // namespace

std::string host_line(const HostSample& sample) {
  std::string line = fmt::format("{}{}", kTimestamp, fixed(sample.timestamp, 3));
  put(line, "step", static_cast<double>(sample.step), 0);
  put(line, "activity", static_cast<double>(sample.activity), 0);
  put(line, "since", sample.activity_seconds, 3);
  put(line, "user", sample.user_seconds, 3);
  put(line, "system", sample.system_seconds, 3);
  put(line, "resident", sample.resident_bytes, 0);
  if (sample.node) {
    for (const NodeField& field : kNodeFields)
      put(line, field.name, *sample.node.*field.value, field.decimals);
  }
  for (std::size_t g = 0; g < std::min(sample.gpus.size(), kMostGpus); ++g) {
    put(line, gpu_name(g, "_busy"), sample.gpus[g].busy_ratio, 2);
    put(line, gpu_name(g, "_memory"), sample.gpus[g].memory_bytes, 0);
  }
  if (sample.start) put_start(line, *sample.start);
  return line + "}\n";
}

HostSample host_sample_of(const StepLine& line) {
  HostSample out;
  out.timestamp = line.timestamp;
  out.step = static_cast<std::int64_t>(line.step);
  const double activity = number(line, "activity", 0, kActivities - 1);
  if (is_known(activity)) out.activity = static_cast<Activity>(static_cast<int>(activity));
  out.activity_seconds = number(line, "since");
  const auto seconds = [&line](std::string_view name) {
    const double value = number(line, name);
    return is_known(value) ? value : 0;
  };
  out.user_seconds = seconds("user");
  out.system_seconds = seconds("system");
  out.resident_bytes = number(line, "resident");
  read_node(line, out);
  out.start = start_of(line);
  return out;
}

bool stays(std::string_view line, double period_seconds) {
  if (!line.starts_with(kTimestamp)) return false;
  if (line.find(kStarted) != std::string_view::npos) return true;
  double moment = 0;
  const char* begin = line.data() + kTimestamp.size();
  const auto [end, code] = std::from_chars(begin, line.data() + line.size(), moment);
  return code == std::errc() && is_on_grid(moment, period_seconds);
}

Status thin_out(const std::filesystem::path& path, double period_seconds) {
  const auto in = InputFile::open(path, Links::refused);
  if (!in.ok()) return in.status();
  auto out = AtomicFile::create(path);
  if (!out.ok()) return out.status();
  std::string kept;
  const auto flush = [&] {
    const Status written = out->write(kept.data(), kept.size());
    kept.clear();
    return written;
  };
  const Status read = each_line(*in, [&](std::string_view line) {
    if (stays(line, period_seconds)) kept += line;
    return kept.size() < kPieceBytes ? ok_status() : flush();
  });
  if (!read.ok()) return read;
  if (Status written = flush(); !written.ok()) return written;
  return out->commit();
}

Status each_host_sample(const std::filesystem::path& path,
                        const std::function<void(const HostSample&)>& take) {
  StepLineReader lines([&take](const StepLine& line) {
    if (line.timestamp >= 0 && line.timestamp <= kMostUnixSeconds) take(host_sample_of(line));
  });
  return read_step_lines(path, lines);
}

Result<HostTrack> read_host_samples(const std::filesystem::path& path, std::int32_t rank,
                                    std::size_t most) {
  TrackBuilder track(rank, most);
  const Status read =
      each_host_sample(path, [&track](const HostSample& sample) { track.take(sample); });
  if (!read.ok()) return read;
  return track.finish();
}

std::vector<HostTrack> read_host_tracks(const std::vector<RankFolder>& folders,
                                        std::vector<std::string>& gaps) {
  const std::size_t most = std::max<std::size_t>(2, kMaxHostSamples / (folders.size() + 1));
  std::vector<HostTrack> tracks;
  for (const RankFolder& folder : folders) {
    auto track = read_host_samples(folder.path / kHostFileName, folder.rank, most);
    if (track.ok() && !track->samples.empty()) tracks.push_back(*std::move(track));
    if (!track.ok() && track.status().code() != StatusCode::not_found)
      gaps.push_back(fmt::format("host timeline: {}", track.status().message()));
  }
  if (!tracks.empty() && tracks.size() < folders.size())
    gaps.push_back(fmt::format(
        "host timeline: {} of {} ranks have none, so waits for these ranks are not shown",
        folders.size() - tracks.size(), folders.size()));
  return tracks;
}

}  // namespace cox::io
