#include "tests/transport/conformance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "coordinator/core/ballot.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {
namespace {

constexpr std::array<std::size_t, 6> kSizes = {0, 1, 7, 256, 5000, 20'000};
constexpr std::array<std::size_t, 7> kCounts = {0, 1, 3, 17, 1000, 4099, 9'001};

WaitPolicy policy(const Communicator& c) {
  return with_timeout(wait_policy(c.ranks_on_node(), 1), std::chrono::seconds(20), "the test");
}

std::uint64_t hash(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u + b + 1;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 29);
}

std::vector<std::byte> pattern(std::int32_t rank, std::size_t size, std::uint64_t salt) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(hash(static_cast<std::uint64_t>(rank) + salt * 131, i));
  }
  return bytes;
}

// Returns magnitudes from 2^-20 to 2^20: another order of the sum gives other bits.
std::vector<float> values(std::int32_t rank, std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t h = hash(static_cast<std::uint64_t>(rank) * 7919, i);
    const float mantissa = static_cast<float>(h % 1000003) / 1000003.0f - 0.5f;
    out[i] = std::ldexp(mantissa, static_cast<int>(h >> 40) % 41 - 20);
  }
  return out;
}

std::vector<float> serial_sum(std::int32_t ranks, std::size_t count) {
  std::vector<float> sum = values(0, count);
  for (std::int32_t r = 1; r < ranks; ++r) {
    const std::vector<float> next = values(r, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  return sum;
}

template <class T>
Bytes bytes(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

std::vector<std::byte> everyone(std::int32_t ranks, std::size_t size, std::uint64_t salt) {
  std::vector<std::byte> all;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const std::vector<std::byte> part = pattern(r, size, salt);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Returns every root for small sizes, the first and last for large ones.
std::vector<std::int32_t> roots(const Communicator& c, std::size_t size) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(c.size()));
  std::iota(all.begin(), all.end(), 0);
  if (size > 1000 && all.size() > 2) all = {0, c.size() - 1};
  return all;
}

// Returns "" or an error that names the size.
std::string verdict(const Status& status, bool right, const char* what, std::size_t size) {
  if (!status.ok()) return std::string(what) + " " + std::to_string(size) + ": " + status.text();
  return right ? "" : std::string(what) + " " + std::to_string(size) + ": wrong result";
}

std::string gather(Communicator& c) {
  for (const std::size_t size : kSizes) {
    for (const std::int32_t root : roots(c, size)) {
      const std::vector<std::byte> mine = pattern(c.rank().value(), size, 1);
      const bool is_root = c.rank().value() == root;
      std::vector<std::byte> all(is_root ? size * static_cast<std::size_t>(c.size()) : 0);
      const Status s = finish(c, c.start_gather(mine, all, RankId(root)), policy(c));
      const bool right = !is_root || all == everyone(c.size(), size, 1);
      std::string text = verdict(s, right, "gather", size);
      if (!text.empty()) return text;
    }
  }
  return "";
}

std::string broadcast(Communicator& c) {
  for (const std::size_t size : kSizes) {
    for (const std::int32_t root : roots(c, size)) {
      std::vector<std::byte> buffer = pattern(c.rank().value(), size, 2);
      const Status s = finish(c, c.start_broadcast(buffer, RankId(root)), policy(c));
      std::string text = verdict(s, buffer == pattern(root, size, 2), "broadcast", size);
      if (!text.empty()) return text;
    }
  }
  return "";
}

std::string all_gather(Communicator& c) {
  for (const std::size_t size : kSizes) {
    const std::vector<std::byte> mine = pattern(c.rank().value(), size, 3);
    std::vector<std::byte> all(size * static_cast<std::size_t>(c.size()));
    const Status s = finish(c, c.start_all_gather(mine, all), policy(c));
    std::string text = verdict(s, all == everyone(c.size(), size, 3), "all_gather", size);
    if (!text.empty()) return text;
  }
  return "";
}

std::string all_reduce(Communicator& c) {
  for (const std::size_t count : kCounts) {
    std::vector<float> mine = values(c.rank().value(), count);
    const Status s = finish(c, c.start_all_reduce(bytes(mine), sum_f32()), policy(c));
    std::string text = verdict(s, same_bits(mine, serial_sum(c.size(), count)), "sum", count);
    if (!text.empty()) return text;
  }
  return "";
}

std::string integer_reductions(Communicator& c) {
  const auto rank = static_cast<std::uint64_t>(c.rank().value());
  const auto ranks = static_cast<std::uint64_t>(c.size());
  struct Row {
    Reduction reduction;
    std::uint64_t given, expected;
  };
  const std::array<Row, 3> rows = {Row{sum_u64(), rank + 1, ranks * (ranks + 1) / 2},
                                   Row{min_u64(), 10 + rank, 10},
                                   Row{max_u64(), 10 + rank, 9 + ranks}};
  for (const Row& row : rows) {
    std::vector<std::uint64_t> value(3, row.given);
    const Status s = finish(c, c.start_all_reduce(bytes(value), row.reduction), policy(c));
    const bool right = value == std::vector<std::uint64_t>(3, row.expected);
    std::string text = verdict(s, right, "integers", row.expected);
    if (!text.empty()) return text;
  }
  return "";
}

std::string ballot(Communicator& c) {
  StepBallot mine;
  mine.loss_sum = std::ldexp(1.0, -c.rank().value()) + 1e-16;
  mine.samples = 3;
  mine.plan_held_min = 100 - static_cast<std::uint64_t>(c.rank().value());
  StepBallot merged = mine;
  const Status s = finish(
      c, c.start_all_reduce(std::as_writable_bytes(std::span(&merged, 1)), merging<StepBallot>()),
      policy(c));
  double loss = 0;
  for (std::int32_t r = 0; r < c.size(); ++r) loss += std::ldexp(1.0, -r) + 1e-16;
  const bool right = merged.samples == 3 * static_cast<std::uint64_t>(c.size()) &&
                     merged.plan_held_min == 101 - static_cast<std::uint64_t>(c.size()) &&
                     merged.loss_sum == loss;
  return verdict(s, right, "ballot of ranks", static_cast<std::size_t>(c.size()));
}

std::string reduce(Communicator& c) {
  for (const std::size_t count : kCounts) {
    for (const std::int32_t root : roots(c, count)) {
      std::vector<float> mine = values(c.rank().value(), count);
      const Status s = finish(c, c.start_reduce(bytes(mine), sum_f32(), RankId(root)), policy(c));
      const bool is_root = c.rank().value() == root;
      const auto expected = is_root ? serial_sum(c.size(), count) : values(c.rank().value(), count);
      std::string text = verdict(s, same_bits(mine, expected), "reduce", count);
      if (!text.empty()) return text;
    }
  }
  return "";
}

// Ranks finish the same operations in different orders, large and small ones mixed.
std::string many_in_flight(Communicator& c) {
  constexpr std::size_t kRequests = 12;
  std::array<std::vector<float>, kRequests> buffers;
  std::array<Request, kRequests> requests;
  for (std::size_t i = 0; i < kRequests; ++i) {
    buffers[i] = values(c.rank().value(), kCounts[i % kCounts.size()]);
    Result<Request> started = c.start_all_reduce(bytes(buffers[i]), sum_f32());
    if (!started.ok()) return started.status().text();
    requests[i] = *started;
  }
  std::array<std::size_t, kRequests> order;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) {
    return hash(static_cast<std::uint64_t>(c.rank().value()), i);
  });
  for (const std::size_t i : order) {
    const Status s = wait(c, requests[i], policy(c));
    const std::size_t count = buffers[i].size();
    std::string text =
        verdict(s, same_bits(buffers[i], serial_sum(c.size(), count)), "one of many", count);
    if (!text.empty()) return text;
  }
  return "";
}

// Ranks start the operations of two communicators in different orders, which is allowed.
std::string duplicates_are_independent(Communicator& c) {
  auto other = c.duplicate();
  if (!other.ok()) return other.status().text();
  if ((*other)->rank() != c.rank() || (*other)->size() != c.size()) return "wrong rank or size";
  std::array<Communicator*, 2> both = {&c, other->get()};
  if (c.rank().value() % 2 == 1) std::swap(both[0], both[1]);
  std::array<std::vector<float>, 2> sums;
  std::array<Request, 2> requests;
  for (std::size_t i = 0; i < 2; ++i) {
    sums[i] = values(c.rank().value(), both[i] == &c ? 4099 : 17);
    Result<Request> started = both[i]->start_all_reduce(bytes(sums[i]), sum_f32());
    if (!started.ok()) return started.status().text();
    requests[i] = *started;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const Status s = wait(*both[i], requests[i], policy(c));
    const std::size_t count = sums[i].size();
    std::string text =
        verdict(s, same_bits(sums[i], serial_sum(c.size(), count)), "two communicators", count);
    if (!text.empty()) return text;
  }
  return "";
}

std::string split(Communicator& c) {
  const std::int32_t color = c.rank().value() % 2;
  auto part = c.split(color);
  if (!part.ok()) return part.status().text();
  if ((*part)->rank().value() != c.rank().value() / 2) return "split: ranks lost their order";
  const std::int32_t size = (c.size() + 1 - color) / 2;
  if ((*part)->size() != size) return "split: wrong size";
  std::vector<std::uint64_t> mine = {static_cast<std::uint64_t>(c.rank().value())};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size));
  const Status s =
      finish(**part, (*part)->start_all_gather(bytes(mine), bytes(all)), policy(**part));
  bool right = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    right = right && all[i] == 2 * i + static_cast<std::uint64_t>(color);
  }
  return verdict(s, right, "split of color", static_cast<std::size_t>(color));
}

std::string nodes_share_memory(Communicator& c) {
  auto node = c.split_by_node();
  if (!node.ok()) return node.status().text();
  if ((*node)->size() != c.ranks_on_node()) return "node: size is not ranks_on_node";
  if ((*node)->ranks_on_node() != (*node)->size()) return "node: ranks_on_node is not its size";
  const auto ranks = static_cast<std::size_t>((*node)->size());
  auto segment = (*node)->shared_segment(ranks * 64);
  if (!segment.ok()) return segment.status().text();
  const Bytes memory = segment->bytes();
  if (memory.size() != ranks * 64) return "segment: wrong size";
  const auto me = static_cast<std::size_t>((*node)->rank().value());
  if (memory[me * 64] != std::byte{0}) return "segment: not zeroed";
  memory[me * 64] = static_cast<std::byte>(me + 1);
  std::vector<std::byte> mine(1);
  std::vector<std::byte> all(ranks);
  const Status met = finish(**node, (*node)->start_all_gather(mine, all), policy(c));
  bool right = true;
  for (std::size_t r = 0; r < ranks; ++r) {
    right = right && memory[r * 64] == static_cast<std::byte>(r + 1);
  }
  return verdict(met, right, "segment of ranks", ranks);
}

// An invalid call fails alone and counts for no rank: the next operation matches.
std::string wrong_calls_are_refused(Communicator& c) {
  std::vector<std::byte> eight(8);
  std::vector<std::byte> wrong(8 * static_cast<std::size_t>(c.size()) + 1);
  std::vector<std::byte> all(8 * static_cast<std::size_t>(c.size()));
  const std::array<Result<Request>, 7> refused = {
      c.start_gather(eight, all, RankId(c.size())),
      c.start_gather(eight, wrong, c.rank()),
      c.start_broadcast(eight, RankId(-1)),
      c.start_all_gather(eight, wrong),
      c.start_all_gather(Bytes(all).first(8), all),
      c.start_all_reduce(Bytes(eight).first(7), sum_f32()),
      c.start_all_reduce(eight, Reduction{}),
  };
  for (std::size_t i = 0; i < refused.size(); ++i) {
    if (refused[i].ok()) return "wrong call " + std::to_string(i) + " was accepted";
    if (refused[i].status().code() != StatusCode::invalid_argument) {
      return "wrong call " + std::to_string(i) + ": " + refused[i].status().text();
    }
  }
  return all_gather(c);
}

std::string requests_end_once(Communicator& c) {
  std::vector<std::uint64_t> value = {1};
  Result<Request> started = c.start_all_reduce(bytes(value), sum_u64());
  if (!started.ok()) return started.status().text();
  const Request copy = *started;
  const Status s = wait(c, *started, policy(c));
  if (!s.ok()) return s.text();
  if (started->active()) return "a done request is still active";
  const Result<Progress> again = c.test(*started);
  if (!again.ok() || *again != Progress::done) return "an inactive request is not done";
  Request stale = copy;
  const bool checked = c.size() > 1;  // a single rank cannot confuse it with another request
  if (checked && c.test(stale).status().code() != StatusCode::failed_precondition) {
    return "a stale request was accepted";
  }
  return "";
}

}  // namespace

const std::vector<ConformanceCase>& conformance_cases() {
  static const std::vector<ConformanceCase> cases = {
      {"gather brings every rank's bytes to any root in rank order", gather},
      {"broadcast brings any root's bytes to every rank", broadcast},
      {"all_gather brings every rank's bytes to every rank", all_gather},
      {"all_reduce has the bits of the sum in ascending rank order", all_reduce},
      {"all_reduce of integers sums and finds minimum and maximum", integer_reductions},
      {"all_reduce merges ballots", ballot},
      {"reduce has the ascending sum at the root and leaves other buffers alone", reduce},
      {"many operations in flight end in any order", many_in_flight},
      {"a duplicate's operations do not meet the original's", duplicates_are_independent},
      {"split groups ranks by color and keeps their order", split},
      {"ranks of a node share zeroed memory", nodes_share_memory},
      {"a wrong call is refused and does not count", wrong_calls_are_refused},
      {"a request ends once", requests_end_once},
  };
  return cases;
}

}  // namespace cox::transport
