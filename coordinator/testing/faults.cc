#include "coordinator/testing/faults.h"

#include <algorithm>

#include "coordinator/testing/random.h"

namespace cox::testing {
namespace {

// Mixes bits: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  return Random(x).bits();
}

std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0;
  for (const char c : name) hash = mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

bool hits(const FaultRule& rule, std::string_view communicator, RankId rank, std::uint64_t number) {
  return (rule.communicator.empty() || rule.communicator == communicator) &&
         (rule.rank.value() < 0 || rule.rank == rank) && number >= rule.first &&
         number <= rule.last;
}

}  // namespace

Fault FaultScript::at(std::string_view communicator, RankId rank, std::uint64_t number) const {
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const FaultRule& rule = rules_[i];
    if (!hits(rule, communicator, rank, number)) continue;
    const auto who = static_cast<std::uint64_t>(rank.value());
    const std::uint64_t draw =
        mix(mix(mix(seed_ + i) ^ hash_name(communicator)) ^ mix(number) ^ (who << 40));
    if (static_cast<double>(draw >> 11) * 0x1p-53 >= rule.probability) continue;
    const std::uint64_t second = mix(draw);
    const auto polls = static_cast<std::uint32_t>(1 + second % std::max(1u, rule.polls));
    return {rule.kind, polls, second};
  }
  return {};
}

void damage(const Fault& fault, std::vector<std::byte>& bytes,
            const std::vector<std::byte>& before) {
  std::uint64_t state = fault.seed;
  switch (fault.kind) {
    case FaultKind::garbage:
      for (std::byte& b : bytes) b = static_cast<std::byte>(state = mix(state));
      break;
    case FaultKind::truncate:
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end(),
                std::byte{0});
      break;
    case FaultKind::blank:
      std::ranges::fill(bytes, std::byte{0});
      break;
    case FaultKind::repeat:
      if (before.size() == bytes.size()) bytes = before;
      break;
    default:
      break;
  }
}

}  // namespace cox::testing
