#include "sdk/src/memory/tier_speed.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "sdk/src/memory/tier_file.h"

namespace cox::detail {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t bytes_per_ms(std::int64_t bytes, Clock::duration taken) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  return bytes * 1000 / std::max<std::int64_t>(us, 1);
}

}  // namespace

Result<TierSpeed> measure_tier(const std::filesystem::path& folder, std::int64_t bytes) {
  Result<TierFile> file = TierFile::create(folder);
  if (!file.ok()) return file.status();
  std::vector<char> data(static_cast<std::size_t>(bytes), 1);
  std::array<std::int64_t, 3> writes{};
  std::array<std::int64_t, 3> reads{};
  for (std::size_t round = 0; round < writes.size(); ++round) {
    const Clock::time_point begin = Clock::now();
    if (Status status = file->write(data.data(), bytes, 0); !status.ok()) return status;
    const Clock::time_point written = Clock::now();
    if (Status status = file->read(data.data(), bytes, 0); !status.ok()) return status;
    writes[round] = bytes_per_ms(bytes, written - begin);
    reads[round] = bytes_per_ms(bytes, Clock::now() - written);
  }
  std::sort(writes.begin(), writes.end());
  std::sort(reads.begin(), reads.end());
  return TierSpeed{writes[1], reads[1]};
}

}  // namespace cox::detail
