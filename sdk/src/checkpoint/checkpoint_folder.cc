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
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include "coordinator/core/hash.h"
#include "coordinator/io/file.h"
#include "coordinator/runtime/saved_state.h"
#include "coxswain/safetensors.h"

namespace cox::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";  // then the step, in 12 digits or more
constexpr std::string_view kTemporary = ".writing-";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kReducer = "reducer.safetensors";
constexpr const char* kNumbers = "numbers.safetensors";
constexpr const char* kControl = "control.state";

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

// Files that a save has only where there is something in them.
Status write_any(const fs::path& file, const std::vector<NamedTensor>& tensors) {
  return tensors.empty() ? ok_status() : write_safetensors(file, tensors);
}

Result<std::vector<NamedTensor>> read_any(const fs::path& file) {
  if (!fs::exists(file)) return std::vector<NamedTensor>();
  auto read = read_safetensors(file);
  if (!read.ok()) return read.status();
  return std::move(read->tensors);
}

Status write_files(const fs::path& folder, const Checkpoint& checkpoint,
                   const ControlState* control) {
  const Metadata metadata = describe(checkpoint);
  if (Status s = write_safetensors(folder / kModel, checkpoint.model, metadata); !s.ok()) return s;
  if (Status s = write_safetensors(folder / kOptimizer, checkpoint.optimizer); !s.ok()) return s;
  if (Status s = write_any(folder / kReducer, checkpoint.reducer); !s.ok()) return s;
  if (Status s = write_any(folder / kNumbers, checkpoint.numbers); !s.ok()) return s;
  if (control == nullptr) return ok_status();
  return runtime::save_control_state(folder / kControl, *control);
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
  auto model = read_safetensors(save / kModel);
  if (!model.ok()) return model.status();
  auto optimizer = read_safetensors(save / kOptimizer);
  if (!optimizer.ok()) return optimizer.status();
  Checkpoint checkpoint;
  if (Status s = read_description(model->metadata, checkpoint); !s.ok()) {
    return s.with_context((save / kModel).string());
  }
  checkpoint.model = std::move(model->tensors);
  checkpoint.optimizer = std::move(optimizer->tensors);
  auto reducer = read_any(save / kReducer);
  if (!reducer.ok()) return reducer.status();
  checkpoint.reducer = std::move(*reducer);
  auto numbers = read_any(save / kNumbers);
  if (!numbers.ok()) return numbers.status();
  checkpoint.numbers = std::move(*numbers);
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
