#include "metrics/topics/ranks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/request.h"
#include "metrics/topics/hosts.h"

namespace cox::metrics {
namespace {

constexpr std::uint64_t kPageRows = 100;  // of /api/v1/ranks, unless asked otherwise
constexpr std::uint64_t kMostRows = 1000;

// Returns the phase in which the rank loses most against the others.
Phase worst_phase(const PhaseSeconds& seconds, const StepSummary& summary) {
  Phase worst = Phase::other;
  double loss = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double over = static_cast<double>(seconds[p]) - summary.phases[p].median;
    if (is_own_work(static_cast<Phase>(p)) && over > loss) {
      loss = over;
      worst = static_cast<Phase>(p);
    }
  }
  return worst;
}

// Returns a part of a phase, cut to the phase; 0 if the part is no positive time.
double within(float part, const RankSignal& report, Phase phase) {
  const float whole = report.phase_seconds[static_cast<std::size_t>(phase)];
  if (!std::isfinite(part) || !(part > 0) || !(whole > 0)) return 0;
  return static_cast<double>(std::min(part, whole));
}

double rounds_of(const RankSignal& report) {
  return static_cast<double>(std::max<std::uint32_t>(report.rounds, 1));
}

double recompute_seconds(const RankSignal& report) {
  return within(report.recompute_seconds, report, Phase::backward) / rounds_of(report);
}

// Returns nullopt if the rank does not measure waiting.
std::optional<double> waiting_seconds(const RankSignal& report) {
  if (!report.has(SignalFlag::waiting_measured)) return std::nullopt;
  return within(report.waiting_seconds, report, Phase::communication) / rounds_of(report);
}

RankRow row_of(const RankSignal& report, const StepSummary& summary) {
  RankRow row;
  row.report = report;
  const double rounds = rounds_of(report);
  row.wall_seconds = report.wall_seconds / rounds;
  for (std::size_t p = 0; p < kPhases; ++p) {
    row.phase_seconds[p] = report.phase_seconds[p] / static_cast<float>(rounds);
    if (is_own_work(static_cast<Phase>(p)))
      row.own_seconds += static_cast<double>(row.phase_seconds[p]);
  }
  row.samples_per_step = report.samples / rounds;
  row.reduction_seconds = static_cast<double>(report.reduction_seconds) / rounds;
  row.reduction_exposed_seconds = static_cast<double>(report.reduction_exposed_seconds) / rounds;
  row.waiting_seconds = waiting_seconds(report);
  row.recompute_seconds = recompute_seconds(report);
  const double median = summary.own_seconds.median;
  row.slowdown_ratio = median > 0 ? row.own_seconds / median : 1;
  row.worst_phase = worst_phase(row.phase_seconds, summary);
  return row;
}

std::int32_t ordinary_ranks(const Snapshot& s) {
  const SlowFindings& slow = s.view<RanksView>().slow;
  const auto seen = s.view<RanksView>().ranks_seen();
  return std::max(0, seen - slow.confirmed - slow.suspected - slow.recovered);
}

constexpr std::array<std::string_view, 3> kBoundNames = {"low", "mean", "high"};

// Returns the mean of a slowdown or an end of the slowdown's interval; 1 if `slow` is null.
template <class Slow>
double bound_of(const Slow* slow, std::size_t bound) {
  if (slow == nullptr) return 1;
  return std::array{slow->slowdown_low, slow->slowdown_ratio, slow->slowdown_high}[bound];
}

// Returns the metrics of the estimates of slow ranks.
std::vector<Metric> slowness_metrics() {
  using S = const Snapshot&;
  return {
      gauge(
          "coxswain_ranks_by_speed", "",
          "Ranks by what the estimates say of their speed; suspected is not yet certain, and "
          "recovered was slow a while ago",
          cases("state", {{"ordinary", [](S s) { return ordinary_ranks(s); }},
                          {"suspected", [](S s) { return s.view<RanksView>().slow.suspected; }},
                          {"slow", [](S s) { return s.view<RanksView>().slow.confirmed; }},
                          {"recovered", [](S s) { return s.view<RanksView>().slow.recovered; }}})),
      gauge(
          "coxswain_straggler_slowdown_ratio", "ratio",
          "Own work over what is expected of the slow rank with the largest slowdown, with the "
          "ends of its 95 % interval; 1 while no rank is slow",
          per("bound", kBoundNames,
              [](S s, std::size_t i) { return bound_of(s.view<RanksView>().slow.slowest(), i); })),
      gauge("coxswain_job_slowdown_ratio", "ratio",
            "Own work of an ordinary rank over the job's own past, with the ends of its 95 % "
            "interval; 1 while the job as a whole is not slow",
            per("bound", kBoundNames,
                [](S s, std::size_t i) {
                  const auto& job = s.view<RanksView>().slow.job;
                  return bound_of(job ? &*job : nullptr, i);
                })),
      gauge("coxswain_slow_hosts", "", "Hosts whose ranks are all slow, at most 16",
            value([](S s) { return s.view<RanksView>().slow.hosts.size(); })),
      gauge(
          "coxswain_rank_waiting_duration_seconds", "seconds",
          "The part of communication in a step that passed before the last rank arrived, by "
          "rank; 0 where it is not measured" +
              kOverRanks,
          spread([](S s) -> const Spread& { return s.view<RanksView>().table->waiting_seconds; })),
      gauge("coxswain_rank_recompute_duration_seconds", "seconds",
            "The part of backward in a step that memory actions cost, by rank" + kOverRanks,
            spread(
                [](S s) -> const Spread& { return s.view<RanksView>().table->recompute_seconds; })),
  };
}

std::vector<Metric> host_metrics() {
  using S = const Snapshot&;
  return {
      gauge("coxswain_host_pressure_ratio", "ratio",
            "Largest part of its time that a host loses, over the hosts: cores' time stolen by "
            "other virtual machines, periods in which the CPU quota was used up, time in which "
            "threads waited for a core, memory or disks; 0 where no host tells",
            per("resource", kPressureNames,
                [](S s, std::size_t i) { return worst_pressure(s.view<RanksView>().hosts, i); })),
      gauge("coxswain_host_load_per_core", "",
            "Threads a core that run or want to, mean of a minute, on the busiest host; 0 where no "
            "host tells",
            value([](S s) { return worst_load(s.view<RanksView>().hosts); })),
      gauge("coxswain_host_clock_ratio", "ratio",
            "Present over largest clock on the host with the slowest cores; absent where no host "
            "tells",
            value([](S s) { return lowest_clock(s.view<RanksView>().hosts); })),
  };
}

std::vector<Metric> rank_metrics() {
  using S = const Snapshot&;
  std::array<std::string, kWorstRanks> slots;
  for (std::size_t slot = 0; slot < kWorstRanks; ++slot) slots[slot] = std::to_string(slot);
  return {
      gauge("coxswain_world_size", "", "Ranks of the job",
            value([](S s) { return s.job->world_size; })),
      gauge("coxswain_ranks", "", "Ranks by what they did in the newest round",
            cases("state", {{"training", [](S s) { return rank_counts(s).training; }},
                            {"finished", [](S s) { return rank_counts(s).finished; }},
                            {"watching", [](S s) { return rank_counts(s).watching; }},
                            {"missing", [](S s) { return rank_counts(s).missing; }}})),
      gauge("coxswain_rank_step_duration_seconds", "seconds",
            "Wall time of a step by rank" + kOverRanks,
            spread([](S s) -> const Spread& { return s.summary.wall_seconds; })),
      gauge("coxswain_rank_work_duration_seconds", "seconds",
            "Own work in a step by rank, without waiting for others" + kOverRanks,
            spread([](S s) -> const Spread& { return s.summary.own_seconds; })),
      gauge("coxswain_phase_duration_seconds", "seconds",
            "Time in a phase of a step by rank" + kOverRanks,
            per("phase", kPhaseNames, "stat", kStatNames,
                [](S s, std::size_t phase, std::size_t stat) {
                  return statistic(s.summary.phases[phase], stat);
                })),
      gauge("coxswain_rank_step_skew_ratio", "ratio",
            "Own work of the slowest rank divided by the median; 1 is even",
            value([](S s) { return skew_ratio(s.summary); })),
      gauge("coxswain_worst_rank", "",
            "The ranks with most own work, slowest in slot 0; the value is the rank, -1 an empty "
            "slot",
            per("slot", slots,
                [](S s, std::size_t slot) {
                  const auto& worst = s.summary.worst;
                  return slot < worst.size() ? worst[slot].rank.value() : -1;
                })),
      gauge("coxswain_worst_rank_slowdown_ratio", "ratio",
            "Own work of the rank in that slot divided by the median; 0 in an empty slot",
            per("slot", slots,
                [](S s, std::size_t slot) {
                  const auto& worst = s.summary.worst;
                  return slot < worst.size() ? worst[slot].slowdown_ratio : 0;
                })),
      gauge("coxswain_rank_memory_used_ratio", "ratio",
            "Memory in use divided by its limit by rank; 0 where no limit is known" + kOverRanks,
            spread([](S s) -> const Spread& { return s.summary.memory_used_ratio; })),
      gauge("coxswain_rank_memory_peak_bytes", "bytes",
            "Largest memory high water of a rank in the newest round",
            value([](S s) { return s.summary.memory_peak_bytes; })),
  };
}

std::vector<Metric> metrics() {
  return joined(rank_metrics(), joined(slowness_metrics(), host_metrics()));
}

void put_interval(io::JsonWriter& json, const auto& slow) {
  json.field("slowdown_ratio", slow.slowdown_ratio).field("slowdown_low", slow.slowdown_low);
  json.field("slowdown_high", slow.slowdown_high).field("since_round", slow.since);
  json.field("rarity", slow.rarity);
}

void put_slow_rank(io::JsonWriter& json, const SlowRank& slow) {
  json.begin_object().field("rank", slow.rank).field("state", to_string(slow.state));
  json.field("phase", to_string(slow.phase()));
  put_interval(json, slow);
  json.field("course", to_string(slow.course)).field("against", to_string(slow.against));
  if (slow.state == SlowState::recovered) json.field("until_round", slow.until);
  json.field("short_spells", slow.short_spells).end_object();
}

// Writes the findings of the estimates: "slow" has the confirmed ranks, "watched" the others.
void put_findings(io::JsonWriter& json, const SlowFindings& told) {
  for (const bool is_confirmed : {true, false}) {
    json.key(is_confirmed ? "slow" : "watched").begin_array();
    for (const SlowRank& slow : told.ranks) {
      if ((slow.state == SlowState::confirmed) == is_confirmed) put_slow_rank(json, slow);
    }
    json.end_array();
  }
  json.field("slow_ranks", told.confirmed).field("suspected_ranks", told.suspected);
  json.field("recovered_ranks", told.recovered).key("slow_hosts").begin_array();
  for (const SlowHost& host : told.hosts) {
    json.begin_object().field("node", host.node).field("ranks", host.ranks);
    json.field("slowdown_ratio", host.slowdown_ratio).field("since_round", host.since);
    json.end_object();
  }
  json.end_array().key("slow_job");
  if (!told.job) return static_cast<void>(json.null());
  json.begin_object();
  put_interval(json, *told.job);
  json.end_object();
}

void put_status(io::JsonWriter& json, const Snapshot& s) {
  const RankCounts counts = rank_counts(s);
  json.key("ranks").begin_object();
  json.field("world_size", s.job->world_size).field("training", counts.training);
  json.field("finished", counts.finished).field("watching", counts.watching);
  json.field("missing", counts.missing).field("skew_ratio", skew_ratio(s.summary));
  put_spread(json, "wall_seconds", s.summary.wall_seconds);
  put_spread(json, "own_seconds", s.summary.own_seconds);
  put_spread(json, "memory_used_ratio", s.summary.memory_used_ratio);
  json.key("phases").begin_object();
  for (std::size_t p = 0; p < kPhases; ++p) put_spread(json, kPhaseNames[p], s.summary.phases[p]);
  json.end_object();
  json.key("worst").begin_array();
  for (const WorstRank& worst : s.summary.worst) {
    json.begin_object().field("rank", worst.rank).field("phase", to_string(worst.phase));
    json.field("own_seconds", worst.own_seconds).field("slowdown_ratio", worst.slowdown_ratio);
    json.end_object();
  }
  json.end_array();
  put_spread(json, "waiting_seconds", s.view<RanksView>().table->waiting_seconds);
  put_spread(json, "recompute_seconds", s.view<RanksView>().table->recompute_seconds);
  put_findings(json, s.view<RanksView>().slow);
  json.end_object();
}

void put_rank(io::JsonWriter& json, const Snapshot& s, const RankRow& row) {
  const RankSignal& report = row.report;
  json.field("rank", report.rank).field("round", report.round).field("step", report.step);
  json.field("rounds_covered", report.rounds).field("loss", report.loss);
  json.field("gradient_norm", report.gradient_norm).field("wall_seconds", row.wall_seconds);
  json.field("own_seconds", row.own_seconds).field("slowdown_ratio", row.slowdown_ratio);
  json.field("worst_phase", to_string(row.worst_phase)).key("phase_seconds").begin_object();
  for (std::size_t p = 0; p < kPhases; ++p) json.field(kPhaseNames[p], row.phase_seconds[p]);
  json.end_object().field("waiting_seconds", row.waiting_seconds);
  json.field("recompute_seconds", row.recompute_seconds).key("slowness");
  const SlowRank* slow = s.view<RanksView>().slow.find(report.rank);
  slow != nullptr ? put_slow_rank(json, *slow) : static_cast<void>(json.null());
  put_host(json, s.view<RanksView>().hosts.find(report.rank));
  json.field("samples", report.samples);
  json.field("control_errors", report.control_errors).field("flags", report.flags);
}

using PutRow = void (*)(io::JsonWriter& json, const Snapshot& snapshot, const RankRow& row);

// Returns rows [offset, offset + limit) of the table, ascending ranks.
Result<std::string> ranks_json(const Snapshot& s, std::string_view query, PutRow put_row) {
  const auto offset = query_number(query, "offset");
  const auto limit = query_number(query, "limit");
  if (!offset.ok()) return offset.status();
  if (!limit.ok()) return limit.status();
  const RankTable& table = *s.view<RanksView>().table;
  const std::uint64_t total = table.rows.size();
  const std::uint64_t first = std::min(offset->value_or(0), total);
  const std::uint64_t last =
      std::min(total, first + std::min(limit->value_or(kPageRows), kMostRows));
  io::JsonWriter json;
  json.begin_object().field("round", table.round).field("time", table.time.seconds);
  json.field("world_size", s.job->world_size).field("reported", total).field("offset", first);
  json.field("next_offset", last < total ? std::optional(last) : std::nullopt);
  json.key("ranks").begin_array();
  for (std::uint64_t i = first; i < last; ++i) put_row(json, s, table.rows[i]);
  json.end_array().key("faults").begin_array();
  for (std::size_t i = 0; i < std::min<std::size_t>(table.faults.size(), kMostRows); ++i) {
    const FaultyReport& fault = table.faults[i];
    json.begin_object().field("rank", fault.rank).field("fault", to_string(fault.fault));
    json.field("round", fault.round).end_object();
  }
  json.end_array().end_object();
  return json.take();
}

std::shared_ptr<const RankTable> rank_table(const StepSignals& signals,
                                            const StepSummary& summary) {
  auto table = std::make_shared<RankTable>();
  table->round = signals.round;
  table->time = signals.now;
  table->faults = signals.faults;
  table->rows.reserve(signals.reports.size());
  for (const RankSignal& report : signals.reports) {
    table->rows.push_back(row_of(report, summary));
    table->samples_per_step += table->rows.back().samples_per_step;
  }
  table->waiting_seconds = spread_over(signals, waiting_seconds);
  table->recompute_seconds =
      spread_over(signals, [](const RankSignal& r) { return std::optional(recompute_seconds(r)); });
  return table;
}

}  // namespace

void RanksView::add(const Round& round) {
  const StepRecord& record = round.record;
  has_reported.resize(static_cast<std::size_t>(std::max(record.job.world_size, 0)), false);
  for (const RankSignal& report : record.signals.reports) {
    const auto rank = static_cast<std::size_t>(report.rank.value());
    if (rank < has_reported.size()) has_reported[rank] = true;
  }
  if (!round.has_figures) return;
  slow = record.decision.slow;
  hosts.add(record.signals, slow);
  if (round.refreshes_tables) table = rank_table(record.signals, record.decision.summary);
}

std::int32_t RanksView::ranks_seen() const {
  return static_cast<std::int32_t>(std::count(has_reported.begin(), has_reported.end(), true));
}

double skew_ratio(const StepSummary& summary) {
  return summary.own_seconds.median > 0 ? summary.own_seconds.max / summary.own_seconds.median : 1;
}

Spread spread_over(const StepSignals& signals, std::optional<double> (*get)(const RankSignal&)) {
  std::vector<RankId> ranks;
  std::vector<double> values;
  for (const RankSignal& report : signals.reports) {
    if (report.rounds == 0 || report.has(SignalFlag::finished)) continue;
    const std::optional<double> value = get(report);
    if (!value) continue;
    ranks.push_back(report.rank);
    values.push_back(*value);
  }
  return spread_of(values, ranks);
}

RankCounts rank_counts(const Snapshot& snapshot) {
  const StepSummary& s = snapshot.summary;
  const std::int32_t world = snapshot.job->world_size;
  RankCounts counts;
  counts.missing = std::clamp(world - s.reporting, 0, world);
  const std::int32_t here = world - counts.missing;
  counts.finished = std::clamp(s.finished, 0, here);
  counts.watching = std::clamp(s.watching, 0, here - counts.finished);
  counts.training = here - counts.finished - counts.watching;
  return counts;
}

Topic ranks_topic(PutRow put_row) {
  const auto json = [put_row](const Snapshot& s, std::string_view query) {
    return ranks_json(s, query, put_row);
  };
  return {.title = "Ranks",
          .follow = grow<RanksView>,
          .metrics = metrics,
          .put_status = put_status,
          .put_rank = put_rank,
          .documents = {{"/api/v1/ranks", "every rank, paged: ?offset=0&limit=100", json}},
          .sections = {{"ranks.html", ranks_section}}};
}

}  // namespace cox::metrics
