// The section Ranks of the status page.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "metrics/format.h"
#include "metrics/pages/values.h"
#include "metrics/topics/hosts.h"
#include "metrics/topics/ranks.h"
#include "metrics/topics/stalls.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kShowAll = 12;  // ranks; larger jobs show the slowest only
constexpr std::size_t kSlowestShown = 8;
constexpr std::size_t kMissingNamed = 8;
constexpr std::size_t kHostsNamed = 4;

// Confirmed ranks come first, then suspected, recovered and ordinary ones.
int place_of(const SlowRank* slow) {
  return slow != nullptr ? static_cast<int>(slow->state == SlowState::suspected) +
                               2 * static_cast<int>(slow->state == SlowState::recovered)
                         : 3;
}

// Returns all ranks. Large jobs show the ranks that are not ordinary, then those with most own
// work.
std::vector<const RankRow*> rows_shown(const RanksView& view) {
  struct Placed {
    std::tuple<int, double, RankId> place;
    const RankRow* row;
  };
  const bool shows_all = view.table->rows.size() <= kShowAll;
  std::vector<Placed> placed;
  for (const RankRow& row : view.table->rows) {
    const SlowRank* slow = view.slow.find(row.report.rank);
    double most = shows_all ? 0 : -row.own_seconds;
    if (slow != nullptr) most = -slow->slowdown_ratio;
    placed.push_back({{place_of(slow), most, row.report.rank}, &row});
  }
  const std::size_t shown = shows_all ? placed.size() : kSlowestShown;
  std::ranges::partial_sort(placed, placed.begin() + static_cast<std::ptrdiff_t>(shown), {},
                            &Placed::place);
  std::vector<const RankRow*> rows;
  for (std::size_t i = 0; i < shown; ++i) rows.push_back(placed[i].row);
  return rows;
}

void add_segment(List& bar, std::size_t phase, std::string_view part, double share,
                 double seconds) {
  if (!(share > 0.001)) return;
  const std::string name(part.empty() ? kPhaseNames[phase] : part);
  bar.push_back({{"class", concat("ph", phase, part.empty() ? "" : " part")},
                 {"width", fixed(100 * share, 1)},
                 {"title", name + " " + seconds_text(seconds)}});
}

// Returns the hatched part of a phase: the time of waiting, or of recomputation.
double hatched_seconds(const RankRow& row, Phase phase) {
  if (phase == Phase::communication) return row.waiting_seconds.value_or(0);
  return phase == Phase::backward ? row.recompute_seconds : 0;
}

List phase_bar(const RankRow& row, double longest) {
  List bar;
  for (std::size_t p = 0; p < kPhases && longest > 0; ++p) {
    const double whole = static_cast<double>(row.phase_seconds[p]);
    const double part = hatched_seconds(row, static_cast<Phase>(p));
    const bool waits = static_cast<Phase>(p) == Phase::communication;
    add_segment(bar, p, "", (whole - part) / longest, whole - part);
    add_segment(bar, p, waits ? "waiting" : "recompute", part / longest, part);
  }
  return bar;
}

// Returns the power of ten in "less than 1 in 10^12", the odds of chance alone; empty below 1.
std::string chance_text(double rarity) {
  const double power = std::clamp(std::floor(rarity), 0.0, 99.0);
  return power >= 1 ? fixed(power, 0) : "";
}

std::string_view compared_text(ComparedWith against) {
  switch (against) {
    case ComparedWith::own_past:
      return "against its own past";
    case ComparedWith::other_rank:
      return "against the other rank, per sample";
    case ComparedWith::others:
      break;
  }
  return "against the other ranks";
}

std::string interval_text(double low, double high) {
  return fixed(low, 2) + " to " + fixed(high, 2);
}

// Returns the values of evidence.html: "in forward since round 41, against the other ranks".
List evidence_of(const SlowRank* slow) {
  if (slow == nullptr) return {};
  const bool is_over = slow->state == SlowState::recovered;
  const std::string since = grouped(slow->since.value());
  const std::string when = is_over ? "from round " + since + " to " + grouped(slow->until.value())
                                   : "since round " + since;
  const std::string_view spells = slow->short_spells == 1 ? " short spell" : " short spells";
  return {{{"phase", to_string(slow->phase())},
           {"when", when},
           {"against", compared_text(slow->against)},
           {"chance", chance_text(slow->rarity)},
           {"spells", slow->short_spells > 0 ? concat(slow->short_spells, spells) : ""}}};
}

Record state_tag(const SlowRank* slow) {
  if (slow == nullptr) return tag("", "ordinary");
  if (slow->state == SlowState::confirmed) return tag("warn", "slow");
  return slow->state == SlowState::suspected ? tag("", "suspected") : tag("good", "recovered");
}

List remarks(const RankRow& row, const Stall& stall) {
  List out;
  const auto add = [&out](bool stands, std::string_view css_class, std::string_view text,
                          std::string_view detail = "") {
    if (stands) out.push_back({{"class", css_class}, {"text", text}, {"detail", detail}});
  };
  const RankSignal& report = row.report;
  const bool is_waiting = stall.is_waiting(report.rank);
  add(is_waiting, "", "waiting");
  const auto culprit = std::ranges::find(stall.culprits, report.rank, &RankMark::rank);
  if (!is_waiting && culprit != stall.culprits.end())
    add(true, "bad", "others wait", text_of(*culprit));
  const auto has = [&report](SignalFlag flag) { return report.has(flag); };
  add(has(SignalFlag::nonfinite_loss) || has(SignalFlag::nonfinite_gradient), "bad", "not finite");
  add(has(SignalFlag::step_skipped), "warn", "skipped");
  add(has(SignalFlag::rolled_back), "warn", "rolled back");
  add(has(SignalFlag::step_repeated), "warn", "done again");
  add(has(SignalFlag::out_of_memory), "warn", "out of memory, run again");
  add(has(SignalFlag::finished), "", "finished");
  add(has(SignalFlag::watching), "", "watching");
  return out;
}

std::string waiting_text(const RankRow& row) {
  return row.waiting_seconds ? seconds_text(*row.waiting_seconds) : "–";
}

std::string recompute_text(const RankRow& row) {
  return row.recompute_seconds > 0 ? seconds_text(row.recompute_seconds) : "–";
}

std::string memory_text(const RankRow& row) {
  const RankSignal& report = row.report;
  if (report.memory_used_bytes == 0 && report.memory_peak_bytes == 0) return "–";
  if (report.memory_limit_bytes == 0) return bytes_text(report.memory_peak_bytes);
  const auto peak = static_cast<double>(report.memory_peak_bytes);
  return percent_text(peak / static_cast<double>(report.memory_limit_bytes), 0);
}

// Returns a row of the table, with the facts of the rank's page. For a slow rank the ratio is the
// estimates' slowdown, with its interval. For any other rank the ratio is that of this round alone.
Record row_of(const Snapshot& s, const RankRow& row, double longest) {
  const RanksView& view = s.view<RanksView>();
  const RankId rank = row.report.rank;
  const SlowRank* slow = view.slow.find(rank);
  const HostEvidence* host = view.hosts.find(rank);
  const std::string words = host != nullptr ? host_words(*host) : "";
  const bool is_slower = slow != nullptr && slow->state != SlowState::recovered;
  return {{"rank", rank.value()},
          {"host", host != nullptr ? host_name(*host) : ""},
          {"is_slow", slow != nullptr && slow->state == SlowState::confirmed},
          {"state", state_tag(slow)},
          {"work", seconds_text(row.own_seconds)},
          {"ratio", times_text(is_slower ? slow->slowdown_ratio : row.slowdown_ratio)},
          {"interval", is_slower ? interval_text(slow->slowdown_low, slow->slowdown_high) : ""},
          {"segments", phase_bar(row, longest)},
          {"waited", waiting_text(row)},
          {"recompute", recompute_text(row)},
          {"memory", memory_text(row)},
          {"remarks", remarks(row, s.view<StallView>().stall)},
          {"has_evidence", slow != nullptr || !words.empty()},
          {"slow", evidence_of(slow)},
          {"words", words}};
}

List missing_of(const std::vector<FaultyReport>& faults) {
  List rows;
  for (const FaultyReport& fault : faults) {
    if (fault.fault == ReportFault::missing) rows.push_back({{"rank", fault.rank.value()}});
  }
  const std::size_t all = rows.size();
  rows.resize(std::min(all, kMissingNamed));
  return with_rows(std::move(rows), all);
}

// Returns "3 missing", "1 slow", "2 suspected".
List counts_of(const Snapshot& s) {
  const RankCounts counts = rank_counts(s);
  const SlowFindings& slow = s.view<RanksView>().slow;
  List out;
  const auto add = [&out](std::int32_t count, std::string_view state) {
    if (count > 0)
      out.push_back({{"count", grouped(static_cast<std::uint64_t>(count))}, {"of", state}});
  };
  add(counts.missing, "missing");
  add(counts.finished, "finished");
  add(counts.watching, "watching");
  add(slow.confirmed, "slow");
  add(slow.suspected, "suspected");
  add(slow.recovered, "recovered");
  return out;
}

List job_note(const SlowFindings& slow) {
  if (!slow.job) return {};
  return {{{"times", times_text(slow.job->slowdown_ratio)},
           {"interval", interval_text(slow.job->slowdown_low, slow.job->slowdown_high)},
           {"since", grouped(slow.job->since.value())},
           {"chance", chance_text(slow.job->rarity)}}};
}

Record host_note(const SlowHost& host) {
  return {{"ranks", host.ranks},
          {"node", host.node.value()},
          {"times", times_text(host.slowdown_ratio)},
          {"since", grouped(host.since.value())}};
}

// Returns the colours that occur in the table.
Record keys_of(const std::vector<const RankRow*>& rows) {
  List phases;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const bool occurs =
        std::ranges::any_of(rows, [p](const RankRow* row) { return row->phase_seconds[p] > 0; });
    if (occurs) phases.push_back({{"phase", p}, {"name", kPhaseNames[p]}});
  }
  const auto any_part = [&rows](Phase phase) {
    return std::ranges::any_of(
        rows, [phase](const RankRow* row) { return hatched_seconds(*row, phase) > 0; });
  };
  return {{"phases", std::move(phases)},
          {"waits", any_part(Phase::communication)},
          {"recomputes", any_part(Phase::backward)}};
}

double phase_sum(const RankRow& row) {
  double sum = 0;
  for (const float seconds : row.phase_seconds) sum += static_cast<double>(seconds);
  return sum;
}

}  // namespace

Record ranks_section(const Snapshot& s) {
  const RanksView& view = s.view<RanksView>();
  const auto rows = rows_shown(view);
  double longest = 0;
  for (const RankRow* row : rows) longest = std::max(longest, phase_sum(*row));
  const Spread& work = s.summary.own_seconds;
  return {{"training", grouped(static_cast<std::uint64_t>(rank_counts(s).training))},
          {"world", grouped(static_cast<std::uint64_t>(s.job->world_size))},
          {"counts", counts_of(s)},
          {"shown", view.table->rows.size() > kShowAll ? std::to_string(kSlowestShown) : ""},
          {"least", seconds_text(work.min)},
          {"most", seconds_text(work.max)},
          {"median", seconds_text(work.median)},
          {"job", job_note(view.slow)},
          {"hosts",
           with_rows(list_of(view.slow.hosts, host_note, kHostsNamed), view.slow.hosts.size())},
          {"rows", list_of(rows, [&](const RankRow* row) { return row_of(s, *row, longest); })},
          {"explains_states", !view.slow.ranks.empty()},
          {"last_rank", s.job->world_size - 1},
          {"missing", missing_of(view.table->faults)},
          {"keys", keys_of(rows)}};
}

List rank_detail(const Snapshot& s, RankId rank) {
  const RanksView& view = s.view<RanksView>();
  const auto& rows = view.table->rows;
  const auto row = std::ranges::find(rows, rank, [](const RankRow& r) { return r.report.rank; });
  if (row == rows.end()) return {};
  Record out = row_of(s, *row, phase_sum(*row));
  out.add("step", grouped(row->report.step.value()));
  out.add("samples", rate_text(row->samples_per_step));
  out.add("has_host", view.hosts.find(rank) != nullptr);
  out.add("keys", keys_of({&*row}));
  return {std::move(out)};
}

}  // namespace cox::metrics
