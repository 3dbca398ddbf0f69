#include "tests/support/cuda/nccl/script.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace cox::test {
namespace {

void read_word(const std::string& word, FaultRuleOfNccl& rule) {
  const std::size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
  const struct {
    const char* key;
    std::int64_t FaultRuleOfNccl::*field;
  } numbers[] = {{"rank", &FaultRuleOfNccl::rank},      {"group", &FaultRuleOfNccl::group},
                 {"op", &FaultRuleOfNccl::op},          {"from", &FaultRuleOfNccl::from},
                 {"every", &FaultRuleOfNccl::every},    {"slow_us", &FaultRuleOfNccl::slow_us},
                 {"error", &FaultRuleOfNccl::error},    {"settle", &FaultRuleOfNccl::settle},
                 {"version", &FaultRuleOfNccl::version}};
  for (const auto& number : numbers) {
    if (key != number.key || value.empty()) continue;
    rule.*number.field = std::strtoll(value.c_str(), nullptr, 10);
    return;
  }
  if (word == "lost") {
    rule.lost = true;
  } else if (word == "abort=hang") {
    rule.hangs_in_abort = true;
  } else if (word == "init=fail") {
    rule.init = InitFault::fail;
  } else if (word == "init=error") {
    rule.init = InitFault::error;
  } else if (word == "init=hang") {
    rule.init = InitFault::hang;
  } else {
    std::fprintf(stderr, "fake NCCL: COX_FAKE_NCCL: unknown word '%s'\n", word.c_str());
    std::abort();
  }
}

bool is_of(const FaultRuleOfNccl& rule, std::int64_t group, std::int64_t rank) {
  return (rule.group < 0 || rule.group == group) && (rule.rank < 0 || rule.rank == rank);
}

bool is_of(const FaultRuleOfNccl& rule, std::int64_t op) {
  return (rule.op < 0 || rule.op == op) && (rule.from < 0 || rule.from <= op) &&
         (rule.every < 1 || op % rule.every == 0);
}

}  // namespace

NcclScript::NcclScript(std::string_view text) {
  std::istringstream rules{std::string(text)};
  std::string rule;
  while (std::getline(rules, rule, ';')) {
    std::istringstream words(rule);
    std::string word;
    FaultRuleOfNccl read;
    bool is_empty = true;
    while (words >> word) {
      read_word(word, read);
      is_empty = false;
    }
    if (!is_empty) rules_.push_back(read);
  }
}

NcclScript::Fault NcclScript::of_collective(std::int64_t group, std::int64_t rank,
                                            std::int64_t op) const {
  Fault fault;
  for (const FaultRuleOfNccl& rule : rules_) {
    if (!is_of(rule, group, rank) || !is_of(rule, op)) continue;
    fault.slow_us += rule.slow_us;
    fault.lost = fault.lost || rule.lost;
    if (rule.error != 0) fault.error = rule.error;
  }
  return fault;
}

InitFault NcclScript::of_init(std::int64_t group, std::int64_t rank) const {
  for (const FaultRuleOfNccl& rule : rules_) {
    if (is_of(rule, group, rank) && rule.init != InitFault::none) return rule.init;
  }
  return InitFault::none;
}

bool NcclScript::hangs_in_abort(std::int64_t group, std::int64_t rank) const {
  return std::ranges::any_of(rules_, [&](const FaultRuleOfNccl& rule) {
    return is_of(rule, group, rank) && rule.hangs_in_abort;
  });
}

std::int64_t NcclScript::polls_to_settle(std::int64_t group, std::int64_t rank) const {
  std::int64_t polls = 1;
  for (const FaultRuleOfNccl& rule : rules_) {
    if (is_of(rule, group, rank) && rule.settle >= 0) polls = rule.settle;
  }
  return polls;
}

std::int64_t NcclScript::version(std::int64_t otherwise) const {
  for (const FaultRuleOfNccl& rule : rules_) {
    if (rule.version >= 0) return rule.version;
  }
  return otherwise;
}

}  // namespace cox::test
