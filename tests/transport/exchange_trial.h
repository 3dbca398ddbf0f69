// A seeded trial of a BucketExchange that every rank runs on its end of a communicator: random
// buckets, rounds of random numbers, random delays, every sum compared bit by bit with one made in
// a plain loop. Returns an empty text, or what went wrong on this rank, which then leaves, so that
// the others say the same instead of waiting; for ranks that are threads and for ranks that are
// processes.
#pragma once

#include <string>

#include "coordinator/transport/exchange/bucket_exchange.h"

namespace cox::transport {

struct ExchangeTrial {
  std::uint64_t seed = 1;
  int rounds = 10;
  std::size_t max_buckets = 8;
  std::size_t max_elements = 5000;
  std::int32_t ranks_per_node = 0;  // as the communicator's; 0 = all on one
  int delays_percent = 10;          // of the chances to dawdle that a rank takes
  std::int32_t slow_rank = -1;      // dawdles ten times as often and as long
  std::int32_t doubting_rank = -1;  // takes its sums of the second round for wrong
  ExchangeOptions options;
  std::string expected_path;  // "" = any
};

std::string try_exchange(Communicator& communicator, const ExchangeTrial& trial);

// Limits that end a hang, with the waiting of ranks that outnumber cores.
ExchangeOptions impatient_options(SharedMemory shared_memory, std::size_t chunk_bytes);

}  // namespace cox::transport
