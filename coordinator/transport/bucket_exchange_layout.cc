#include "coordinator/transport/bucket_exchange_layout.h"

#include <algorithm>
#include <string>

#include "coordinator/transport/call.h"

namespace cox::transport {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
// Up to the first a bucket is one chunk: adding it takes about as long as waking a rank to help.
// Beyond, about 16 chunks let ranks of different speed share the work, none so small that claiming
// counts, none so large that a rank which loses the core in the middle holds up the others for
// long.
constexpr std::size_t kOneChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kMaxChunkBytes = std::size_t{256} << 10;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

std::size_t chunk_for(const BucketSpec& bucket, std::size_t wanted) {
  const std::size_t chosen = std::clamp(bucket.bytes / 16, kOneChunkBytes, kMaxChunkBytes);
  const std::size_t element = bucket.reduction.element_bytes;
  // Whole elements and, where those allow it, whole cache lines.
  const std::size_t unit = kLine % element == 0 ? kLine : element;
  return std::max(unit, (wanted > 0 ? wanted : chosen) / unit * unit);
}

}  // namespace

Result<BucketLayout> BucketLayout::make(const std::vector<BucketSpec>& buckets,
                                        std::size_t chunk_bytes) {
  BucketLayout layout;
  for (const BucketSpec& bucket : buckets) {
    Status fits = check_reduction(bucket.reduction, bucket.bytes);
    if (!fits.ok()) return fits.with_context("bucket " + std::to_string(layout.places.size()));
    const std::size_t chunk = chunk_for(bucket, chunk_bytes);
    const std::uint64_t chunks = std::max<std::uint64_t>(1, (bucket.bytes + chunk - 1) / chunk);
    layout.places.push_back({layout.arena_bytes, bucket.bytes, chunk, chunks, bucket.reduction});
    layout.arena_bytes += round_up(bucket.bytes, kLine);
  }
  layout.arena_bytes = round_up(std::max<std::size_t>(1, layout.arena_bytes), kPage);
  return layout;
}

std::uint64_t BucketLayout::fingerprint() const {
  std::uint64_t hash = 0xCBF2'9CE4'8422'2325u;
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E37'79B9'7F4A'7C15u;
    hash ^= hash >> 29;
  };
  for (const BucketPlace& place : places) {
    mix(place.bytes);
    mix(place.chunk_bytes);
    mix(place.reduction.element_bytes);
  }
  mix(places.size());
  return std::max<std::uint64_t>(1, hash);
}

}  // namespace cox::transport
