#include "sdk/src/memory/memory_agreement.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/planner/operator_graph.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/agreement.h"

namespace cox::detail {
namespace {

using planner::RankProblem;

// Hashes everything except measurements; 0 for a region that was not measured.
std::uint64_t digest_of(const std::optional<MeasuredRegion>& region) {
  if (!region) return 0;
  Fnv1a64 hash;
  const auto add = [&hash](std::int64_t number) { hash.add(static_cast<std::uint64_t>(number)); };
  add(static_cast<std::int64_t>(region->graph.operators.size()));
  for (const planner::GraphStorage& it : region->graph.storages) {
    add(it.bytes);
    add(it.maker);
    add(it.packed_bytes);
    add(it.is_held ? 1 : 0);
  }
  for (const planner::GraphOperator& it : region->graph.operators) {
    hash.add(it.name);
    for (const planner::ValueRead& read : it.reads) add(read.from);
    for (const planner::SavedRead& save : it.saves) add(save.storage);
  }
  return hash.value();
}

std::uint64_t digest_of(const MeasuredRegions& regions) {
  Fnv1a64 hash;
  for (const std::optional<MeasuredRegion>& region : regions) hash.add(digest_of(region));
  return hash.value();
}

// Calls visit(figure) for every measurement, operator by operator.
template <class Visit>
void visit_figures(MeasuredRegions& regions, Visit&& visit) {
  for (std::optional<MeasuredRegion>& region : regions) {
    if (!region) continue;
    for (planner::GraphOperator& it : region->graph.operators) {
      for (std::int64_t* figure : {&it.ns, &it.own_bytes, &it.asking_bytes, &it.backward_bytes})
        visit(*figure);
    }
  }
}

}  // namespace

Result<MeasuredRegions> with_figures_of_root(transport::Communicator& ranks,
                                             MeasuredRegions regions) {
  const transport::WaitPolicy policy = wait_policy_of(ranks);
  const auto digests = transport::all_gather(ranks, digest_of(regions), policy);
  if (!digests.ok()) return digests.status().with_context("memory");
  if (std::ranges::count(*digests, digests->front()) != ranks.size()) return regions;
  std::vector<std::int64_t> figures;
  visit_figures(regions, [&](std::int64_t figure) { figures.push_back(figure); });
  if (figures.empty()) return regions;
  const Status sent = transport::broadcast(ranks, std::span(figures), policy);
  if (!sent.ok()) return sent.with_context("memory");
  visit_figures(regions,
                [next = figures.begin()](std::int64_t& figure) mutable { figure = *next++; });
  return regions;
}

Result<std::vector<RankProblem>> gather_problems(transport::Communicator& ranks,
                                                 const RankProblem& mine) {
  const std::string row = encode_state(mine);
  const auto rows = gather_rows(ranks, std::vector<char>(row.begin(), row.end()),
                                "all ranks to measure their memory");
  if (!rows.ok()) return rows.status();
  std::vector<RankProblem> problems;
  for (const std::vector<char>& each : *rows) {
    auto problem = decode_state<RankProblem>(std::string_view(each.data(), each.size()));
    if (!problem.ok()) return problem.status().with_context("memory problem");
    problems.push_back(std::move(*problem));
  }
  return problems;
}

}  // namespace cox::detail
