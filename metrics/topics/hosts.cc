#include "metrics/topics/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "coordinator/core/text.h"

namespace cox::metrics {
namespace {

constexpr std::array<float HostEvidence::*, kPressureNames.size()> kPressures = {
    &HostEvidence::steal_ratio, &HostEvidence::throttled_ratio, &HostEvidence::cpu_pressure,
    &HostEvidence::memory_pressure, &HostEvidence::io_pressure};

// Smallest values that the page mentions.
constexpr std::array<double, kPressureNames.size()> kUnusual = {0.05, 0.05, 0.25, 0.05, 0.1};
constexpr std::array<std::string_view, kPressureNames.size()> kWords = {
    "{} of the cores' time goes to other virtual machines",
    "its CPU quota was used up in {} of the periods", "threads waited for a core in {} of the time",
    "threads waited for memory in {} of the time", "threads waited for disks in {} of the time"};
constexpr double kUnusualLoad = 1.5;
constexpr double kUnusualClock = 0.8;

std::optional<double> known(float value) {
  if (!std::isfinite(value) || value < 0) return std::nullopt;
  return static_cast<double>(value);
}

double largest(const HostNotes& notes, float HostEvidence::*field) {
  double most = 0;
  if (notes.list == nullptr) return most;
  for (const HostNote& note : *notes.list)
    most = std::max(most, known(note.evidence.*field).value_or(0));
  return most;
}

void take(std::vector<HostNote>& notes, const HostNote& fresh, const SlowFindings& slow) {
  const auto at = std::ranges::lower_bound(notes, fresh.rank, {}, &HostNote::rank);
  if (at != notes.end() && at->rank == fresh.rank) {
    at->evidence = fresh.evidence;
    return;
  }
  const std::size_t most = slow.find(fresh.rank) != nullptr ? 2 * kHostNotes : kHostNotes;
  if (notes.size() < most) notes.insert(at, fresh);
}

}  // namespace

void HostNotes::add(const StepSignals& signals, const SlowFindings& slow) {
  std::shared_ptr<std::vector<HostNote>> changed;
  for (const RankSignal& report : signals.reports) {
    if (report.fragment.kind != FragmentKind::host_evidence) continue;
    const auto evidence = read_host_evidence(report.fragment);
    if (!evidence.ok()) continue;
    if (changed == nullptr) {
      changed = std::make_shared<std::vector<HostNote>>();
      if (list != nullptr) *changed = *list;
    }
    take(*changed, {report.rank, *evidence}, slow);
  }
  if (changed != nullptr) list = std::move(changed);
}

const HostEvidence* HostNotes::find(RankId rank) const {
  if (list == nullptr) return nullptr;
  const auto at = std::ranges::lower_bound(*list, rank, {}, &HostNote::rank);
  return at != list->end() && at->rank == rank ? &at->evidence : nullptr;
}

std::string host_words(const HostEvidence& evidence) {
  std::string words;
  const auto add = [&words](std::string_view text) {
    words += (words.empty() ? "" : "; ") + std::string(text);
  };
  for (std::size_t i = 0; i < kPressures.size(); ++i) {
    const auto value = known(evidence.*kPressures[i]);
    if (value && *value >= kUnusual[i])
      add(fmt::format(fmt::runtime(kWords[i]), percent_text(*value, 0)));
  }
  const auto load = known(evidence.load_per_core);
  if (load && *load >= kUnusualLoad) add(fixed(*load, 1) + " threads a core want to run");
  const auto clock = known(evidence.clock_ratio);
  if (clock && *clock <= kUnusualClock)
    add("its cores run at " + percent_text(*clock, 0) + " of their largest clock");
  return words;
}

double worst_pressure(const HostNotes& notes, std::size_t index) {
  return largest(notes, kPressures[index]);
}

double worst_load(const HostNotes& notes) {
  return largest(notes, &HostEvidence::load_per_core);
}

double lowest_clock(const HostNotes& notes) {
  double lowest = std::numeric_limits<double>::quiet_NaN();
  if (notes.list == nullptr) return lowest;
  for (const HostNote& note : *notes.list) {
    const auto clock = known(note.evidence.clock_ratio);
    if (clock) lowest = std::fmin(lowest, *clock);
  }
  return lowest;
}

void put_host(io::JsonWriter& json, const HostEvidence* evidence) {
  json.key("host");
  if (evidence == nullptr) return static_cast<void>(json.null());
  json.begin_object().field("name", host_name(*evidence));
  for (std::size_t i = 0; i < kPressures.size(); ++i)
    json.field(kPressureNames[i], known(evidence->*kPressures[i]));
  json.field("load_per_core", known(evidence->load_per_core));
  json.field("clock_ratio", known(evidence->clock_ratio)).end_object();
}

}  // namespace cox::metrics
