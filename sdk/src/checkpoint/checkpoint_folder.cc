#include "sdk/src/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/runtime/saved_state.h"
#include "coxswain/safetensors.h"

namespace cox::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";  // then the step, in 12 digits or more
constexpr std::string_view kTemporary = ".writing-";
// The files of a save that hold tensors. The first one also tells the place in the run.
struct TensorFile {
  const char* name;
  std::vector<NamedTensor> Checkpoint::*tensors;
  bool is_optional;  // only there where it has something in it
};
constexpr TensorFile kFiles[] = {{"model.safetensors", &Checkpoint::model, false},
                                 {"optimizer.safetensors", &Checkpoint::optimizer, false},
                                 {"reducer.safetensors", &Checkpoint::reducer, true},
                                 {"numbers.safetensors", &Checkpoint::numbers, true}};
constexpr const char* kControl = "control.state";

// Absent in saves of earlier versions.
constexpr const char* kSeed = "coxswain.seed";
constexpr const char* kSamples = "coxswain.samples";
// Present where a loss scaler was at work.
constexpr const char* kScale = "coxswain.loss_scale_bits";

// Calls visit(key, number) for what every save says of the place in the run.
template <class Position, class Visit>
void visit_position(Position& position, const Visit& visit) {
  visit("coxswain.step", position.step);
  visit("coxswain.cursor", position.cursor);
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

// A number is told by its bits: a float would lose some as text.
template <class Number>
using BitsOf = std::conditional_t<sizeof(Number) == 4, std::uint32_t, std::uint64_t>;

template <class Number>
Status read_number(const Metadata& metadata, const std::string& key, Number& value) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    return data_loss("expected metadata '" + key + "', found none; this is no save of a run");
  }
  BitsOf<Number> bits = 0;
  const std::string& text = found->second;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), bits);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) {
    return data_loss(sentence("metadata '%s': expected a number of %zu bits, found '%s'",
                              key.c_str(), 8 * sizeof(Number), text.c_str()));
  }
  value = std::bit_cast<Number>(bits);
  return ok_status();
}

Status check(const ScalerState& scaler) {
  const auto is_magnitude = [](float value) { return value >= 0 && std::isfinite(value); };
  if (is_magnitude(scaler.scale) && scaler.scale != 0 && is_magnitude(scaler.peak) &&
      is_magnitude(scaler.former_peak)) {
    return ok_status();
  }
  return data_loss(sentence(
      "loss scale: expected finite numbers, the scale above 0, found scale %f, peaks %f and "
      "%f; the save is damaged",
      static_cast<double>(scaler.scale), static_cast<double>(scaler.peak),
      static_cast<double>(scaler.former_peak)));
}

std::string folder_name(std::uint64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%012llu", static_cast<unsigned long long>(step));
  return name;
}

// Nothing for a folder that no save of ours is called: "step-best" is somebody's own.
std::optional<std::uint64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::uint64_t step = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return folder_name(step) == name ? std::optional(step) : std::nullopt;
}

// Puts `fresh` where `target` is, in one act when the target exists: a crash leaves one of the two.
Status move_into_place(const fs::path& fresh, const fs::path& target) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    return ok_status();
  }
  std::error_code error;
  fs::remove_all(target, error);
  fs::rename(fresh, target, error);
  if (error) return resource_exhausted("cannot rename it into place: " + error.message());
  return ok_status();
}

Status write_files(const fs::path& folder, const Checkpoint& checkpoint,
                   const ControlState* control) {
  for (const TensorFile& file : kFiles) {
    const std::vector<NamedTensor>& tensors = checkpoint.*file.tensors;
    if (file.is_optional && tensors.empty()) continue;
    const Metadata metadata = &file == kFiles ? describe(checkpoint) : Metadata();
    if (Status s = write_safetensors(folder / file.name, tensors, metadata); !s.ok()) return s;
  }
  if (control == nullptr) return ok_status();
  return runtime::save_control_state(folder / kControl, *control);
}

}  // namespace

Metadata describe(const Checkpoint& checkpoint) {
  const TrainingPosition& p = checkpoint.position;
  Metadata metadata = {{"format", "pt"}};
  const auto add = [&](const char* key, auto number) {
    metadata[key] = std::to_string(std::bit_cast<BitsOf<decltype(number)>>(number));
  };
  visit_position(p, add);
  add(kSamples, p.samples);
  if (p.seed) add(kSeed, *p.seed);
  if (p.scaler) visit_scaler(*p.scaler, add);
  return metadata;
}

Status read_description(const Metadata& metadata, Checkpoint& checkpoint) {
  TrainingPosition& p = checkpoint.position;
  Status status;
  const auto read = [&](const char* key, auto& number) {
    if (status.ok()) status = read_number(metadata, key, number);
  };
  visit_position(p, read);
  if (metadata.contains(kSamples)) read(kSamples, p.samples);
  if (metadata.contains(kSeed)) read(kSeed, p.seed.emplace());
  if (metadata.contains(kScale)) visit_scaler(p.scaler.emplace(), read);
  return status.ok() && p.scaler ? check(*p.scaler) : status;
}

Result<CheckpointFolder> CheckpointFolder::open(fs::path directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  // All ranks probe the folder at once, so each under a name of its own.
  std::string probe = (directory / ".writing-probe-XXXXXX").string();
  if (!error && ::mkdtemp(probe.data()) == nullptr) error.assign(errno, std::generic_category());
  if (error) {
    return failed_precondition("checkpoint directory " + directory.string() +
                               ": expected a folder to write to, found: " + error.message() +
                               "; set checkpoint.directory to another one");
  }
  fs::remove(probe, error);
  return CheckpointFolder(std::move(directory));
}

std::vector<fs::path> CheckpointFolder::saves() const {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    if (step_of(entry.path())) found.push_back(entry.path());
  }
  std::ranges::sort(found, {}, step_of);
  return found;
}

std::optional<fs::path> CheckpointFolder::newest() const {
  const auto all = saves();
  if (all.empty()) return std::nullopt;
  return all.back();
}

void CheckpointFolder::remove_leftovers() const {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    if (entry.path().filename().string().starts_with(kTemporary)) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

Status CheckpointFolder::write(const Checkpoint& checkpoint, const ControlState* control,
                               std::uint32_t keep) {
  remove_leftovers();
  const std::string name = folder_name(checkpoint.position.step);
  const fs::path final_path = directory_ / name;
  const fs::path temporary = directory_ / (std::string(kTemporary) + name);
  std::error_code error;
  if (!fs::create_directory(temporary, error)) {
    return resource_exhausted("checkpoint " + final_path.string() +
                              ": cannot create a folder for it: " + error.message());
  }
  Status written = write_files(temporary, checkpoint, control);
  if (written.ok()) {
    written = io::sync_folder(temporary);
    if (written.ok()) written = move_into_place(temporary, final_path);
  }
  if (!written.ok()) {
    fs::remove_all(temporary, error);
    return written.with_context("checkpoint " + final_path.string());
  }
  remove_others(final_path, keep);
  return io::sync_folder(directory_)
      .with_context("checkpoint " + final_path.string() + ": written, but");
}

void CheckpointFolder::remove_others(const fs::path& newest, std::uint32_t keep) const {
  std::error_code error;
  auto all = saves();
  while (!all.empty() && step_of(all.back()) > step_of(newest)) {
    fs::remove_all(all.back(), error);
    all.pop_back();
  }
  for (std::size_t i = 0; i + keep < all.size(); ++i) fs::remove_all(all[i], error);
}

Result<Checkpoint> CheckpointFolder::read(const fs::path& save) {
  Checkpoint checkpoint;
  for (const TensorFile& file : kFiles) {
    const fs::path path = save / file.name;
    if (file.is_optional && !fs::exists(path)) continue;
    auto read = read_safetensors(path);
    if (!read.ok()) return read.status();
    checkpoint.*file.tensors = std::move(read->tensors);
    if (&file != kFiles) continue;
    const Status status = read_description(read->metadata, checkpoint);
    if (!status.ok()) return status.with_context(path.string());
  }
  return checkpoint;
}

Result<ControlState> CheckpointFolder::read_control(const fs::path& save) {
  return runtime::load_control_state(save / kControl);
}

std::uint64_t fingerprint(const std::vector<NamedTensor>& tensors) {
  Fnv1a64 hash;
  for (const NamedTensor& named : tensors) {
    hash.add(named.name + ":" + c10::toString(named.tensor.scalar_type()));
    for (const std::int64_t size : named.tensor.sizes()) hash.add("," + std::to_string(size));
    hash.add(";");
  }
  return hash.value();
}

}  // namespace cox::detail
