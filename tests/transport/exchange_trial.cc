#include "tests/transport/exchange_trial.h"

#include <sched.h>

#include <array>
#include <bit>
#include <cstring>
#include <thread>

namespace cox::transport {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567) { next(); }
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t z = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t limit) { return next() % limit; }

 private:
  std::uint64_t state_;
};

struct Kind {
  Reduction reduction;
  void (*fill)(std::byte* at, std::uint64_t bits);
};

// Writes magnitudes from 2^-20 to 2^20: another order of the sum gives other bits.
void fill_f32(std::byte* at, std::uint64_t bits) {
  const std::uint32_t exponent = 107 + static_cast<std::uint32_t>(bits >> 32) % 41;
  const auto raw = static_cast<std::uint32_t>(bits & 0x807F'FFFF) | exponent << 23;
  std::memcpy(at, &raw, sizeof raw);
}
void fill_f64(std::byte* at, std::uint64_t bits) {
  const std::uint64_t exponent = 1003 + (bits >> 52) % 41;
  const std::uint64_t raw = (bits & 0x800F'FFFF'FFFF'FFFF) | exponent << 52;
  std::memcpy(at, &raw, sizeof raw);
}
void fill_u64(std::byte* at, std::uint64_t bits) {
  std::memcpy(at, &bits, sizeof bits);
}

std::array<Kind, 4> kinds() {
  return {Kind{sum_f32(), fill_f32}, Kind{sum_f64(), fill_f64}, Kind{sum_u64(), fill_u64},
          Kind{max_f64(), fill_f64}};
}

struct Bucket {
  BucketSpec spec;
  Kind kind;
};

std::vector<Bucket> random_buckets(const ExchangeTrial& trial) {
  Random random(trial.seed);
  std::vector<Bucket> buckets(1 + random.below(trial.max_buckets));
  for (Bucket& bucket : buckets) {
    bucket.kind = kinds()[random.below(4)];
    const std::size_t limit = 1 + random.below(trial.max_elements + 1);
    const std::size_t elements = random.below(limit);
    bucket.spec = {elements * bucket.kind.reduction.element_bytes, bucket.kind.reduction};
  }
  return buckets;
}

void fill(const Bucket& bucket, std::uint64_t key, Bytes into) {
  Random random(key);
  const std::size_t element = bucket.spec.reduction.element_bytes;
  for (std::size_t at = 0; at < into.size(); at += element) {
    bucket.kind.fill(into.data() + at, random.next());
  }
}

class Rank {
 public:
  Rank(Communicator& c, const ExchangeTrial& trial)
      : c_(c),
        trial_(trial),
        buckets_(random_buckets(trial)),
        dawdles_(trial.seed * 64 + static_cast<std::uint64_t>(c.rank().value())) {}
  // Returns why this rank left the exchange; empty if it did not.
  std::string run();

 private:
  std::string create();
  std::uint64_t key(std::int32_t rank, int round, std::size_t bucket) const {
    return ((trial_.seed * 1009 + static_cast<std::uint64_t>(round)) * 67 + bucket) * 64 +
           static_cast<std::uint64_t>(rank);
  }
  void dawdle();
  void expect_sum(int round, std::size_t bucket);
  std::string round(int number);
  std::string check(int number);

  Communicator& c_;
  const ExchangeTrial& trial_;
  const std::vector<Bucket> buckets_;
  Random dawdles_;
  std::unique_ptr<BucketExchange> exchange_;
  std::vector<std::byte*> addresses_;
  std::vector<std::byte> sum_, node_sum_, part_;
};

void Rank::dawdle() {
  const bool slow = c_.rank().value() == trial_.slow_rank;
  const auto percent = static_cast<std::size_t>(trial_.delays_percent * (slow ? 10 : 1));
  if (dawdles_.below(100) >= percent) return;
  const std::size_t micros = dawdles_.below(slow ? 1000 : 100);
  if (micros % 2 == 0) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(micros));
  }
}

// Adds the ranks of a node in ascending order, then the nodes in ascending order.
void Rank::expect_sum(int round, std::size_t bucket) {
  const Bucket& it = buckets_[bucket];
  const std::int32_t per_node = trial_.ranks_per_node > 0 ? trial_.ranks_per_node : c_.size();
  const std::size_t elements = it.spec.bytes / it.spec.reduction.element_bytes;
  for (auto* memory : {&sum_, &node_sum_, &part_}) memory->resize(it.spec.bytes);
  for (std::int32_t first = 0; first < c_.size(); first += per_node) {
    const std::int32_t end = std::min(first + per_node, c_.size());
    fill(it, key(first, round, bucket), node_sum_);
    for (std::int32_t r = first + 1; r < end; ++r) {
      fill(it, key(r, round, bucket), part_);
      it.spec.reduction.apply(node_sum_.data(), part_.data(), elements);
    }
    if (first == 0) {
      sum_ = node_sum_;
    } else {
      it.spec.reduction.apply(sum_.data(), node_sum_.data(), elements);
    }
  }
}

std::string Rank::check(int number) {
  const bool doubts = c_.rank().value() == trial_.doubting_rank && number == 1;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const std::string name = "bucket " + std::to_string(b) + " of round " + std::to_string(number);
    if (!exchange_->is_done(b)) return name + " is not done";
    const Bytes found = exchange_->buffer(b);
    if (found.data() != addresses_[b]) return name + " moved";
    expect_sum(number, b);
    if (sum_.empty()) continue;
    if (doubts || std::memcmp(found.data(), sum_.data(), sum_.size()) != 0) {
      return name + " has other bits, of " + std::to_string(sum_.size()) + " bytes";
    }
  }
  return "";
}

std::string Rank::round(int number) {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    fill(buckets_[b], key(c_.rank().value(), number, b), exchange_->buffer(b));
    dawdle();
    Status started = exchange_->start(b);
    if (!started.ok()) return started.text();
    while (dawdles_.below(3) == 0) {
      Status moved = exchange_->advance();
      if (!moved.ok()) return moved.text();
      dawdle();
    }
  }
  Status done = exchange_->wait_all([this] {
    if (dawdles_.below(8) == 0) dawdle();
  });
  return done.ok() ? check(number) : done.text();
}

std::string Rank::create() {
  std::vector<BucketSpec> specs;
  for (const Bucket& bucket : buckets_) specs.push_back(bucket.spec);
  auto made = BucketExchange::create(c_, specs, trial_.options);
  if (!made.ok()) return made.status().text();
  exchange_ = std::move(*made);
  if (!trial_.expected_path.empty() && exchange_->path() != trial_.expected_path) {
    return std::string("took the path ") + exchange_->path() + ": " + exchange_->note();
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    addresses_.push_back(exchange_->buffer(b).data());
    if (std::bit_cast<std::uintptr_t>(addresses_[b]) % 64 != 0) return "a buffer is not aligned";
  }
  return "";
}

std::string Rank::run() {
  std::string text = create();
  for (int number = 0; number < trial_.rounds && text.empty(); ++number) text = round(number);
  if (!text.empty() && exchange_ != nullptr) exchange_->leave(text);
  return text;
}

}  // namespace

std::string try_exchange(Communicator& communicator, const ExchangeTrial& trial) {
  const std::string text = Rank(communicator, trial).run();
  return text.empty() ? "" : "seed " + std::to_string(trial.seed) + ": " + text;
}

ExchangeOptions impatient_options(SharedMemory shared_memory, std::size_t chunk_bytes) {
  const WaitPolicy policy =
      with_timeout({.yields = 40}, std::chrono::seconds(60), "the ranks of the test");
  return {shared_memory, chunk_bytes, policy};
}

}  // namespace cox::transport
