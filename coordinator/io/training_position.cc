#include "coordinator/io/training_position.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <system_error>
#include <type_traits>

#include "coordinator/core/text.h"

namespace cox::io {
namespace {

constexpr const char* kStep = "coxswain.step";
constexpr const char* kCursor = "coxswain.cursor";
// Absent in saves of earlier versions.
constexpr const char* kSeed = "coxswain.seed";
constexpr const char* kSamples = "coxswain.samples";
constexpr const char* kDataHash = "coxswain.data_hash";
// Present if a loss scaler was active.
constexpr const char* kScale = "coxswain.loss_scale_bits";
// Higher than any run's counts, and far enough below 2^64 for sums.
constexpr std::uint64_t kMostCounted = std::uint64_t{1} << 53;

// Calls visit(key, number) for the counts of every save.
template <class Position, class Visit>
void visit_counts(Position& position, const Visit& visit) {
  visit(kStep, position.step);
  visit(kCursor, position.cursor);
  visit("coxswain.skipped", position.skipped);
  visit("coxswain.rollbacks", position.rollbacks);
}
template <class Scaler, class Visit>
void visit_scaler(Scaler& scaler, const Visit& visit) {
  visit(kScale, scaler.scale);
  visit("coxswain.loss_scale_clean_steps", scaler.clean_steps);
  visit("coxswain.loss_scale_overflow_streak", scaler.overflow_streak);
  visit("coxswain.loss_scale_peak_bits", scaler.peak);
  visit("coxswain.loss_scale_former_peak_bits", scaler.former_peak);
  visit("coxswain.loss_scale_strikes", scaler.strikes);
}

// Stores a number's bits, because a float as text would lose some.
template <class Number>
using BitsOf = std::conditional_t<sizeof(Number) == 4, std::uint32_t, std::uint64_t>;

template <class Number>
Status read_number(const Metadata& metadata, const std::string& key, Number& value) {
  const auto found = metadata.find(key);
  if (found == metadata.end())
    return data_loss("expected metadata '", key,
                     "', found none; the file is not a save of a training run");
  BitsOf<Number> bits = 0;
  const std::string& text = found->second;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), bits);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size())
    return data_loss("metadata '", key, "': expected a number of ", 8 * sizeof(Number),
                     " bits, found '", text, "'");
  value = std::bit_cast<Number>(bits);
  return ok_status();
}

Status check_count(const std::string& key, std::uint64_t count) {
  if (count <= kMostCounted) return ok_status();
  return data_loss("metadata '", key, "': expected at most 2^53, found ", count);
}

Status check_counts(const TrainingPosition& p) {
  Status status = check_count(kSamples, p.samples);
  visit_counts(p, [&](const char* key, std::uint64_t count) {
    if (status.ok()) status = check_count(key, count);
  });
  if (!status.ok()) return status;
  if (p.skipped > p.step)
    return data_loss("expected at most as many skipped steps as steps, found ", p.skipped,
                     " skipped of ", p.step);
  // Each step of a loop over a data set consumes at least one sample.
  if (p.samples > 0 && p.cursor < p.step)
    return data_loss("expected at least as many samples consumed as steps, found ", p.cursor,
                     " samples in ", p.step, " steps");
  return ok_status();
}

Status check(const ScalerState& scaler) {
  const auto is_magnitude = [](float value) { return value >= 0 && std::isfinite(value); };
  if (is_magnitude(scaler.scale) && scaler.scale != 0 && is_magnitude(scaler.peak) &&
      is_magnitude(scaler.former_peak)) {
    return ok_status();
  }
  return data_loss("loss scale: expected finite numbers, the scale above 0, found scale ",
                   scaler.scale, ", peaks ", scaler.peak, " and ", scaler.former_peak,
                   "; the save is damaged");
}

}  // namespace

Metadata describe(const TrainingPosition& p) {
  Metadata metadata = {{"format", "pt"}};
  const auto add = [&](const char* key, auto number) {
    metadata[key] = std::to_string(std::bit_cast<BitsOf<decltype(number)>>(number));
  };
  visit_counts(p, add);
  add(kSamples, p.samples);
  if (p.data_hash != 0) add(kDataHash, p.data_hash);
  if (p.seed) add(kSeed, *p.seed);
  if (p.scaler) visit_scaler(*p.scaler, add);
  return metadata;
}

Metadata describe_step(std::uint64_t step) {
  return {{kStep, std::to_string(step)}};
}

Result<TrainingPosition> read_position(const Metadata& metadata) {
  TrainingPosition p;
  Status status;
  const auto read = [&](const char* key, auto& number) {
    if (status.ok()) status = read_number(metadata, key, number);
  };
  visit_counts(p, read);
  if (metadata.contains(kSamples)) read(kSamples, p.samples);
  if (metadata.contains(kDataHash)) read(kDataHash, p.data_hash);
  if (metadata.contains(kSeed)) read(kSeed, p.seed.emplace());
  if (metadata.contains(kScale)) visit_scaler(p.scaler.emplace(), read);
  if (status.ok()) status = check_counts(p);
  if (status.ok() && p.scaler) status = check(*p.scaler);
  if (!status.ok()) return status;
  return p;
}

Status check_place(const Metadata& metadata, std::uint64_t step) {
  if (!metadata.contains(kStep)) return ok_status();
  std::uint64_t said = 0;
  if (Status read = read_number(metadata, kStep, said); !read.ok()) return read;
  if (said != step)
    return data_loss("expected tensors of step ", step, ", found tensors of step ", said,
                     "; the file belongs to another save");
  return metadata.contains(kCursor) ? read_position(metadata).status() : ok_status();
}

}  // namespace cox::io
