#include "sdk/src/training/rank_rows.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>

#include "coordinator/core/text.h"
#include "coordinator/io/content_hash.h"
#include "coxswain/error.h"
#include "sdk/src/optim/archive_bytes.h"

namespace cox::detail {
namespace {

// A row stores bytes as doubles: first their number, then four bytes in each double, which holds
// them exactly.
constexpr std::size_t kBytesOfNumber = 4;

std::vector<double> numbers_of(const std::string& bytes) {
  std::vector<double> row{static_cast<double>(bytes.size())};
  for (std::size_t at = 0; at < bytes.size(); at += kBytesOfNumber) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(kBytesOfNumber, bytes.size() - at));
    row.push_back(word);
  }
  return row;
}

bool is_whole(double number, double most) {
  return number >= 0 && number <= most && std::floor(number) == number;
}

Result<std::string> bytes_of_row(std::span<const double> row) {
  const double most = static_cast<double>(row.size() * kBytesOfNumber);
  const bool is_sized = !row.empty() && is_whole(row[0], most);
  const auto size = is_sized ? static_cast<std::size_t>(row[0]) : 0;
  if (!is_sized || row.size() != 1 + (size + kBytesOfNumber - 1) / kBytesOfNumber)
    return invalid_argument("expected a row of bytes, found one of ", row.size(), " numbers");
  std::string bytes(size, '\0');
  for (std::size_t at = 0; at < size; at += kBytesOfNumber) {
    const double number = row[1 + at / kBytesOfNumber];
    if (!is_whole(number, 0xFFFFFFFFu))
      return invalid_argument("expected four bytes in each number of a row, found another number");
    const auto word = static_cast<std::uint32_t>(number);
    std::memcpy(bytes.data() + at, &word, std::min(kBytesOfNumber, size - at));
  }
  return bytes;
}

at::Generator generator_of(const at::Device& device) {
  return at::globalContext().defaultGenerator(device);
}

std::string generator_state(const at::Device& device) {
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const at::Tensor state = generator.get_state().contiguous();
  return {static_cast<const char*>(state.const_data_ptr()), state.nbytes()};
}

Status take_generator_state(const at::Device& device, const std::string& bytes) {
  at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
  at::Generator generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  try {
    generator.set_state(state);
  } catch (const std::exception& error) {
    return invalid_argument("torch cannot read them: ", first_line(error.what()));
  }
  return ok_status();
}

std::uint64_t hash_of(const at::Tensor& buffer) {
  if (buffer.layout() != at::kStrided) return 0;
  const at::Tensor dense = buffer.detach().cpu().contiguous();
  return io::content_hash(
      std::span(static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()));
}

// A row has all buffers of up to so many bytes, and larger ones if they changed.
constexpr std::size_t kSmallBytes = 64 << 10;

std::string key_of(std::size_t buffer) {
  return concat("buffer", buffer);
}
std::string hash_key_of(std::size_t buffer) {
  return concat("hash", buffer);
}

}  // namespace

std::vector<double> RankRow::save() const {
  return numbers_of(parts_.bytes());
}

Status RankRow::load(std::span<const double> row) {
  const auto bytes = bytes_of_row(row);
  return bytes.ok() ? parts_.take(*bytes) : bytes.status();
}

RankRow::Parts row_of_generator(const c10::Device& device) {
  return {
      device.is_cpu() ? "random" : "device_random",
      device.is_cpu() ? "the stream of random numbers" : "the device's stream of random numbers",
      [device] { return generator_state(device); },
      [device](const std::string& bytes) { return take_generator_state(device, bytes); }};
}

RankRow::Parts row_of_gradients(std::function<std::vector<at::Tensor>()> parameters) {
  const auto bytes = [parameters] {
    std::string has;
    for (const at::Tensor& p : parameters()) {
      const at::Tensor& gradient = p.grad();
      has += gradient.defined() && gradient.layout() == at::kStrided ? '1' : '0';
    }
    return has.find('1') == has.npos ? std::string() : has;
  };
  const auto take = [parameters](const std::string& has) {
    const std::vector<at::Tensor> all = parameters();
    if (all.empty()) return ok_status();
    if (!has.empty() && has.size() != all.size())
      return invalid_argument("expected ", all.size(), " parameters, found ", has.size());
    const at::NoGradGuard no_grad;
    for (std::size_t p = 0; p < has.size(); ++p) {
      if (has[p] == '1' && all[p].requires_grad() && !all[p].grad().defined())
        all[p].mutable_grad() = at::zeros_like(all[p]);
    }
    return ok_status();
  };
  return {"gradients", "which parameters have a gradient", bytes, take};
}

RankRow::Parts row_of(std::string_view name, TorchSampler& sampler) {
  const auto bytes = [&sampler] {
    torch::serialize::OutputArchive archive;
    sampler.save(archive);
    return bytes_of(archive);
  };
  const auto take = [&sampler](const std::string& saved) {
    try {
      torch::serialize::InputArchive archive;
      archive.load_from(saved.data(), saved.size());
      sampler.load(archive);
    } catch (const std::exception& error) {
      return data_loss("torch cannot read it: ", first_line(error.what()));
    }
    return ok_status();
  };
  return {concat("sampler-", name), concat("the sampler \"", name, "\""), bytes, take};
}

void OwnBuffers::note_equal(const AdoptedModels& models) {
  buffers_.clear();
  hashes_.clear();
  for (const AdoptedModel& model : models.all()) {
    for (const at::Tensor& buffer : model.module->buffers()) {
      buffers_.push_back(buffer);
      hashes_.push_back(hash_of(buffer));
    }
  }
}

std::string OwnBuffers::bytes() const {
  torch::serialize::OutputArchive archive;
  bool has_some = false;
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const std::uint64_t hash = hash_of(buffers_[b]);
    const bool is_large =
        buffers_[b].layout() != at::kStrided || buffers_[b].nbytes() > kSmallBytes;
    const bool is_left_out = is_large && hash == hashes_[b];
    archive.write(is_left_out ? hash_key_of(b) : key_of(b),
                  is_left_out ? at::scalar_tensor(static_cast<std::int64_t>(hash), at::kLong)
                              : buffers_[b].detach(),
                  /*is_buffer=*/true);
    has_some = true;
  }
  if (!has_some) return {};
  return bytes_of(archive);
}

Status OwnBuffers::take(const std::string& bytes) const {
  if (bytes.empty()) return ok_status();
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(bytes.data(), bytes.size());
    const at::NoGradGuard no_grad;
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      at::Tensor saved;
      if (archive.try_read(hash_key_of(b), saved, /*is_buffer=*/true)) {
        const auto hash = static_cast<std::int64_t>(hash_of(buffers_[b]));
        if (saved.item<std::int64_t>() != hash)
          return failed_precondition("expected rank 0's values of buffer ", b,
                                     ", which this rank had not changed when it saved, found that "
                                     "rank 0 had changed them; let all ranks write the buffer");
      }
      if (!archive.try_read(key_of(b), saved, /*is_buffer=*/true)) continue;
      if (saved.sizes() != buffers_[b].sizes() || saved.dtype() != buffers_[b].dtype())
        return invalid_argument(
            "expected the shapes and types of the model's buffers, found different ones");
      at::Tensor(buffers_[b]).copy_(saved);
    }
  } catch (const std::exception& error) {
    return invalid_argument("torch cannot read them: ", first_line(error.what()));
  }
  return ok_status();
}

}  // namespace cox::detail
