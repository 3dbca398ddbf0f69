// A seeded trial of a BucketExchange, run by every rank on its end of a communicator: random
// buckets, random numbers and random delays. Compares every sum bit by bit with a plain loop's.
// Returns this rank's error, empty on success. A failed rank leaves, so that the others fail, too,
// instead of waiting. Ranks may be threads or processes.
#pragma once

#include <string>

#include "coordinator/transport/exchange/bucket_exchange.h"

namespace cox::transport {

struct ExchangeTrial {
  std::uint64_t seed = 1;
  int rounds = 10;
  std::size_t max_buckets = 8;
  std::size_t max_elements = 5000;
  std::int32_t ranks_per_node = 0;  // like the communicator's; 0 = all on one node
  int delays_percent = 10;          // share of a rank's chances to sleep
  std::int32_t slow_rank = -1;      // sleeps ten times as often and as long
  std::int32_t doubting_rank = -1;  // treats its sums of the second round as wrong
  ExchangeOptions options;
  std::string expected_path;  // "" = any
};

std::string try_exchange(Communicator& communicator, const ExchangeTrial& trial);

// Limits that end a hang, with waits for ranks that outnumber cores.
ExchangeOptions impatient_options(SharedMemory shared_memory, std::size_t chunk_bytes);

}  // namespace cox::transport
