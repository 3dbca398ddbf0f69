#include "coordinator/planner/operator_graph.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::planner {
namespace {

std::string operator_text(const OperatorGraph& graph, std::size_t index) {
  return concat("operator ", index, " (", graph.operators[index].name, ")");
}

class Validation {
 public:
  explicit Validation(const OperatorGraph& graph)
      : graph_(graph), writers_(graph.storages.size()) {}

  Status run() {
    if (graph_.operators.empty() || graph_.operators.size() > kMaxGraphOperators)
      return invalid_argument("operator graph: expected 1 to ", kMaxGraphOperators,
                              " operators, found ", graph_.operators.size());
    for (std::size_t i = 0; i < graph_.storages.size(); ++i) {
      const GraphStorage& it = graph_.storages[i];
      if (it.bytes < 0 || it.bytes > kMaxGraphValue || it.packed_bytes < 0 ||
          it.packed_bytes > it.bytes || it.maker < 0 ||
          static_cast<std::size_t>(it.maker) >= graph_.operators.size())
        return invalid_argument("operator graph: storage ", i,
                                ": expected bytes in range and an operator that made it");
    }
    for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
      if (const char* wrong = fault(i); wrong != nullptr)
        return invalid_argument("operator graph: ", operator_text(graph_, i), ": ", wrong);
      for (const std::int32_t s : graph_.operators[i].writes) ++writers_[at(s)];
    }
    return ok_status();
  }

 private:
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
  bool is_storage(std::int32_t index) const {
    return index >= 0 && at(index) < graph_.storages.size();
  }
  bool is_made_before(std::int32_t storage, std::size_t op) const {
    return at(graph_.storages[at(storage)].maker) < op;
  }

  // Returns null if there is no fault.
  const char* fault(std::size_t op) const {
    const GraphOperator& it = graph_.operators[op];
    if (it.ns < 0 || it.ns > kMaxGraphValue) return "expected ns in range";
    for (const std::int64_t bytes : {it.own_bytes, it.asking_bytes, it.backward_bytes})
      if (bytes < 0 || bytes > kMaxGraphValue) return "expected bytes in range";
    for (const ValueRead& read : it.reads) {
      if (const char* wrong = fault(read, op); wrong != nullptr) return wrong;
    }
    for (const std::int32_t s : it.writes) {
      if (!is_storage(s) || !is_made_before(s, op))
        return "expected writes to storages that were made before";
    }
    for (const SavedRead& save : it.saves) {
      if (!is_storage(save.storage) || at(graph_.storages[at(save.storage)].maker) > op)
        return "expected to save storages that exist";
      if (!save.by_value) continue;
      if (const char* wrong = fault(save.value, op); wrong != nullptr) return wrong;
    }
    return nullptr;
  }

  const char* fault(const ValueRead& read, std::size_t op) const {
    if (read.from < 0 || at(read.from) >= op) return "expected to read results of operators before";
    if (read.storage == kOutside) return nullptr;
    if (!is_storage(read.storage) || graph_.storages[at(read.storage)].maker > read.from)
      return "expected to read a storage that was made before";
    if (read.writes < 0 || read.writes > writers_[at(read.storage)])
      return "expected to read a storage after at most as many writes as there were";
    return nullptr;
  }

  const OperatorGraph& graph_;
  std::vector<std::int32_t> writers_;
};

}  // namespace

Status validate(const OperatorGraph& graph) {
  return Validation(graph).run();
}

std::vector<std::int32_t> candidates(const OperatorGraph& graph) {
  std::vector<bool> is_saved(graph.storages.size());
  for (const GraphOperator& it : graph.operators) {
    for (const SavedRead& save : it.saves) is_saved[static_cast<std::size_t>(save.storage)] = true;
  }
  std::vector<std::int32_t> found;
  for (std::size_t s = 0; s < is_saved.size(); ++s) {
    if (is_saved[s] && !graph.storages[s].is_held) found.push_back(static_cast<std::int32_t>(s));
  }
  return found;
}

std::int64_t kept_bytes(const GraphStorage& storage) {
  return storage.packed_bytes > 0 ? storage.packed_bytes : storage.bytes;
}

std::int64_t held_bytes(const OperatorGraph& graph, const KeptSet& kept) {
  std::int64_t sum = 0;
  for (const std::int32_t s : candidates(graph)) {
    const auto at = static_cast<std::size_t>(s);
    if (kept[at]) sum += kept_bytes(graph.storages[at]);
  }
  return sum;
}

std::int64_t saved_bytes(const OperatorGraph& graph) {
  std::int64_t sum = 0;
  for (const std::int32_t s : candidates(graph))
    sum += graph.storages[static_cast<std::size_t>(s)].bytes;
  return sum;
}

}  // namespace cox::planner
