#include "sdk/src/checkpoint/checkpoint_metadata.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace cox::detail {
namespace {

// Absent in saves of earlier versions.
constexpr const char* kSeed = "coxswain.seed";
constexpr const char* kSamples = "coxswain.samples";

// Present where a loss scaler was at work. Numbers with a point are kept as their bits, to be
// exact.
constexpr const char* kScaleKey = "coxswain.loss_scale_bits";
constexpr const char* kCleanSteps = "coxswain.loss_scale_clean_steps";
constexpr const char* kStreakKey = "coxswain.loss_scale_overflow_streak";
constexpr const char* kPeak = "coxswain.loss_scale_peak_bits";
constexpr const char* kFormerPeak = "coxswain.loss_scale_former_peak_bits";
constexpr const char* kStrikes = "coxswain.loss_scale_strikes";

std::string bits_of(float value) {
  return std::to_string(std::bit_cast<std::uint32_t>(value));
}

void add_scaler(const ScalerState& scaler, Metadata& metadata) {
  metadata[kScaleKey] = bits_of(scaler.scale);
  metadata[kCleanSteps] = std::to_string(scaler.clean_steps);
  metadata[kStreakKey] = std::to_string(scaler.overflow_streak);
  metadata[kPeak] = bits_of(scaler.peak);
  metadata[kFormerPeak] = bits_of(scaler.former_peak);
  metadata[kStrikes] = std::to_string(scaler.strikes);
}

Status read_number(const Metadata& metadata, const std::string& key, std::uint64_t& value) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    return data_loss("expected metadata '" + key + "', found none; this is no save of a run");
  }
  const std::string& text = found->second;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) {
    return data_loss("metadata '" + key + "': expected a number, found '" + text + "'");
  }
  return ok_status();
}

Status read_small(const Metadata& metadata, const char* key, std::uint32_t& value) {
  std::uint64_t number = 0;
  if (Status status = read_number(metadata, key, number); !status.ok()) return status;
  if (number > std::numeric_limits<std::uint32_t>::max()) {
    return data_loss("metadata '" + std::string(key) + "': expected a number of 32 bits, found " +
                     std::to_string(number));
  }
  value = static_cast<std::uint32_t>(number);
  return ok_status();
}

Status read_bits(const Metadata& metadata, const char* key, float& value) {
  std::uint32_t bits = 0;
  const Status status = read_small(metadata, key, bits);
  value = std::bit_cast<float>(bits);
  return status;
}

Status read_scaler(const Metadata& metadata, std::optional<ScalerState>& scaler) {
  ScalerState read;
  Status status = read_bits(metadata, kScaleKey, read.scale);
  if (status.ok()) status = read_small(metadata, kCleanSteps, read.clean_steps);
  if (status.ok()) status = read_small(metadata, kStreakKey, read.overflow_streak);
  if (status.ok()) status = read_bits(metadata, kPeak, read.peak);
  if (status.ok()) status = read_bits(metadata, kFormerPeak, read.former_peak);
  if (status.ok()) status = read_small(metadata, kStrikes, read.strikes);
  if (!status.ok()) return status;
  const auto is_magnitude = [](float value) { return value >= 0 && std::isfinite(value); };
  if (!is_magnitude(read.scale) || read.scale == 0 || !is_magnitude(read.peak) ||
      !is_magnitude(read.former_peak)) {
    return data_loss("loss scale: expected finite numbers, the scale above 0, found scale " +
                     std::to_string(read.scale) + ", peaks " + std::to_string(read.peak) + " and " +
                     std::to_string(read.former_peak) + "; the save is damaged");
  }
  scaler = read;
  return ok_status();
}

}  // namespace

Metadata describe(const Checkpoint& checkpoint) {
  const TrainingPosition& p = checkpoint.position;
  Metadata metadata = {{"format", "pt"},
                       {"coxswain.step", std::to_string(p.step)},
                       {"coxswain.cursor", std::to_string(p.cursor)},
                       {kSamples, std::to_string(p.samples)},
                       {"coxswain.skipped", std::to_string(p.skipped)},
                       {"coxswain.rollbacks", std::to_string(p.rollbacks)}};
  if (p.seed) metadata[kSeed] = std::to_string(*p.seed);
  if (p.scaler) add_scaler(*p.scaler, metadata);
  return metadata;
}

Status read_description(const Metadata& metadata, Checkpoint& checkpoint) {
  TrainingPosition& p = checkpoint.position;
  const struct {
    const char* key;
    std::uint64_t& value;
  } fields[] = {{"coxswain.step", p.step},
                {"coxswain.cursor", p.cursor},
                {"coxswain.skipped", p.skipped},
                {"coxswain.rollbacks", p.rollbacks}};
  for (const auto& field : fields) {
    if (Status s = read_number(metadata, field.key, field.value); !s.ok()) return s;
  }
  if (metadata.contains(kSeed)) {
    if (Status s = read_number(metadata, kSeed, p.seed.emplace()); !s.ok()) return s;
  }
  if (metadata.contains(kSamples)) {
    if (Status s = read_number(metadata, kSamples, p.samples); !s.ok()) return s;
  }
  return metadata.contains(kScaleKey) ? read_scaler(metadata, p.scaler) : ok_status();
}

}  // namespace cox::detail
