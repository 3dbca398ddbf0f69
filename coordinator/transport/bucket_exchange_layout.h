// BucketLayout: where each bucket lies in a rank's arena and in which chunks its sum is worked off.
// The same on all ranks, which fingerprint() lets them check. Pure values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/transport/bucket_exchange.h"

namespace cox::transport {

struct BucketPlace {
  std::size_t offset = 0;  // in a rank's arena; a multiple of 64
  std::size_t bytes = 0;
  std::size_t chunk_bytes = 0;  // of whole elements; the last chunk may be smaller
  std::uint64_t chunks = 1;
  Reduction reduction;
};

struct BucketLayout {
  std::vector<BucketPlace> places;
  std::size_t arena_bytes = 0;  // of one rank; whole pages

  // `chunk_bytes` as in ExchangeOptions. invalid_argument for a bucket without a reduction or of
  // broken elements.
  static Result<BucketLayout> make(const std::vector<BucketSpec>& buckets, std::size_t chunk_bytes);
  // Differs, but for chance, where sizes, elements or chunks do; never 0.
  std::uint64_t fingerprint() const;
};

}  // namespace cox::transport
