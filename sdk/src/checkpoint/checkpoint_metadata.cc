#include "sdk/src/checkpoint/checkpoint_metadata.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace cox::detail {
namespace {

// Present where a loss scaler was at work; the scale as the bits of a float, to be exact.
constexpr const char* kScaleBits = "coxswain.loss_scale_bits";
constexpr const char* kCleanSteps = "coxswain.loss_scale_clean_steps";
constexpr const char* kOverflowStreak = "coxswain.loss_scale_overflow_streak";

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

Status read_scaler(const Metadata& metadata, std::optional<ScalerState>& scaler) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  std::uint64_t bits = 0;
  std::uint64_t clean = 0;
  std::uint64_t streak = 0;
  Status status = read_number(metadata, kScaleBits, bits);
  if (status.ok()) status = read_number(metadata, kCleanSteps, clean);
  if (status.ok()) status = read_number(metadata, kOverflowStreak, streak);
  if (!status.ok()) return status;
  const float scale =
      bits <= kMost ? std::bit_cast<float>(static_cast<std::uint32_t>(bits)) : std::nanf("");
  if (!(scale > 0) || !std::isfinite(scale) || clean > kMost || streak > kMost) {
    return data_loss("loss scale: expected a finite number above 0 and counts of 32 bits, found " +
                     std::to_string(scale) + " (bits " + std::to_string(bits) + "), " +
                     std::to_string(clean) + " clean steps, " + std::to_string(streak) +
                     " overflows; the save is damaged");
  }
  scaler =
      ScalerState{scale, static_cast<std::uint32_t>(clean), static_cast<std::uint32_t>(streak)};
  return ok_status();
}

}  // namespace

Metadata describe(const Checkpoint& checkpoint) {
  const TrainingPosition& p = checkpoint.position;
  Metadata metadata = {{"format", "pt"},
                       {"coxswain.step", std::to_string(p.step)},
                       {"coxswain.cursor", std::to_string(p.cursor)},
                       {"coxswain.skipped", std::to_string(p.skipped)},
                       {"coxswain.rollbacks", std::to_string(p.rollbacks)},
                       {"coxswain.model", std::to_string(checkpoint.model_fingerprint)}};
  if (p.scaler) {
    metadata[kScaleBits] = std::to_string(std::bit_cast<std::uint32_t>(p.scaler->scale));
    metadata[kCleanSteps] = std::to_string(p.scaler->clean_steps);
    metadata[kOverflowStreak] = std::to_string(p.scaler->overflow_streak);
  }
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
                {"coxswain.rollbacks", p.rollbacks},
                {"coxswain.model", checkpoint.model_fingerprint}};
  for (const auto& field : fields) {
    if (Status s = read_number(metadata, field.key, field.value); !s.ok()) return s;
  }
  return metadata.contains(kScaleBits) ? read_scaler(metadata, p.scaler) : ok_status();
}

}  // namespace cox::detail
