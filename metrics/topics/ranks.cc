#include "metrics/topics/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

#include "metrics/catalogue.h"
#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/json_parts.h"
#include "metrics/request.h"
#include "metrics/snapshot.h"
#include "metrics/topic.h"

namespace cox::metrics {
namespace {

constexpr std::int32_t kRefreshEveryRound = 256;  // ranks; larger jobs once a second
constexpr double kRefreshSeconds = 1.0;
constexpr std::uint64_t kPageRows = 100;  // of /api/v1/ranks, unless asked otherwise
constexpr std::uint64_t kMostRows = 1000;
constexpr std::size_t kShowAll = 12;  // ranks; larger jobs show the slowest only
constexpr std::size_t kSlowestShown = 8;
constexpr std::size_t kMissingNamed = 8;

// The phase in which the rank loses most against the others.
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

RankRow row_of(const RankSignal& report, const StepSummary& summary) {
  RankRow row{report};
  const auto rounds = static_cast<double>(std::max<std::uint32_t>(report.rounds, 1));
  row.wall_seconds = report.wall_seconds / rounds;
  for (std::size_t p = 0; p < kPhases; ++p) {
    row.phase_seconds[p] = report.phase_seconds[p] / static_cast<float>(rounds);
    if (is_own_work(static_cast<Phase>(p)))
      row.own_seconds += static_cast<double>(row.phase_seconds[p]);
  }
  row.samples_per_step = report.samples / rounds;
  row.reduction_seconds = static_cast<double>(report.reduction_seconds) / rounds;
  row.reduction_exposed_seconds = static_cast<double>(report.reduction_exposed_seconds) / rounds;
  const double median = summary.own_seconds.median;
  row.slowdown_ratio = median > 0 ? row.own_seconds / median : 1;
  row.worst_phase = worst_phase(row.phase_seconds, summary);
  return row;
}

std::vector<Metric> metrics() {
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
  json.end_array().key("slow").begin_array();
  for (const SlowRank& slow : s.ranks.slow) {
    json.begin_object().field("rank", slow.rank).field("phase", to_string(slow.phase()));
    json.field("slowdown_ratio", slow.slowdown_ratio).field("since_round", slow.since);
    json.field("rarity", slow.rarity).end_object();
  }
  json.end_array().end_object();
}

void put_rank(io::JsonWriter& json, const Snapshot&, const RankRow& row) {
  const RankSignal& report = row.report;
  json.field("rank", report.rank).field("round", report.round).field("step", report.step);
  json.field("rounds_covered", report.rounds).field("loss", report.loss);
  json.field("gradient_norm", report.gradient_norm).field("wall_seconds", row.wall_seconds);
  json.field("own_seconds", row.own_seconds).field("slowdown_ratio", row.slowdown_ratio);
  json.field("worst_phase", to_string(row.worst_phase)).key("phase_seconds").begin_object();
  for (std::size_t p = 0; p < kPhases; ++p) json.field(kPhaseNames[p], row.phase_seconds[p]);
  json.end_object().field("samples", report.samples);
  json.field("control_errors", report.control_errors).field("flags", report.flags);
}

void put_row(io::JsonWriter& json, const Snapshot& s, const RankRow& row) {
  json.begin_object();
  for (const Topic& topic : topics()) {
    if (topic.put_rank != nullptr) topic.put_rank(json, s, row);
  }
  json.end_object();
}

// Rows [offset, offset + limit) of the table, ascending ranks.
Result<std::string> ranks_json(const Snapshot& s, std::string_view query) {
  const auto offset = query_number(query, "offset");
  const auto limit = query_number(query, "limit");
  if (!offset.ok()) return offset.status();
  if (!limit.ok()) return limit.status();
  const RankTable& table = *s.ranks.table;
  const std::uint64_t total = table.rows.size();
  const std::uint64_t first = std::min(offset->value_or(0), total);
  const std::uint64_t last =
      std::min(total, first + std::min(limit->value_or(kPageRows), kMostRows));
  io::JsonWriter json;
  json.begin_object().field("round", table.round).field("time", table.time.seconds);
  json.field("world_size", s.job->world_size).field("reported", total).field("offset", first);
  json.key("next_offset");
  last < total ? json.value(last) : json.null();
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

const SlowRank* find_slow(const RanksView& view, RankId rank) {
  for (const SlowRank& slow : view.slow) {
    if (slow.rank == rank) return &slow;
  }
  return nullptr;
}

// All ranks, or in large jobs those that count as slow and then those with most own work.
std::vector<const RankRow*> rows_shown(const RanksView& view) {
  std::vector<const RankRow*> rows;
  for (const RankRow& row : view.table->rows) rows.push_back(&row);
  if (rows.size() <= kShowAll) return rows;
  const auto key = [&view](const RankRow* row) {
    return std::tuple(find_slow(view, row->report.rank) == nullptr, -row->own_seconds,
                      row->report.rank);
  };
  std::partial_sort(rows.begin(), rows.begin() + kSlowestShown, rows.end(),
                    [&key](const RankRow* a, const RankRow* b) { return key(a) < key(b); });
  rows.resize(kSlowestShown);
  return rows;
}

std::string phase_bar(const RankRow& row, double longest) {
  std::string out = "<div class=\"bar\" aria-hidden=\"true\">";
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double share = longest > 0 ? static_cast<double>(row.phase_seconds[p]) / longest : 0;
    if (share > 0.001)
      out += fmt::format("<i class=\"ph{}\" style=\"width:{}%\"></i>", p, fixed(100 * share, 1));
  }
  return out + "</div>";
}

// What the rank does right now, in a wait that lasts.
std::string remark_of(const Stall* stall, RankId rank) {
  if (stall == nullptr) return {};
  if (stall->is_waiting(rank)) return tag("", "waiting") + " ";
  for (const RankMark& mark : stall->culprits) {
    if (mark.rank != rank) continue;
    return fmt::format("{} <small>{}</small> ", tag("bad", "others wait"), text_of(mark));
  }
  return {};
}

std::string remarks(const RankRow& row, const SlowRank* slow, const Stall* stall) {
  std::string out = remark_of(stall, row.report.rank);
  const auto add = [&out](std::string_view css_class, std::string_view text) {
    out += tag(css_class, text) + " ";
  };
  const RankSignal& report = row.report;
  if (report.has(SignalFlag::nonfinite_loss) || report.has(SignalFlag::nonfinite_gradient))
    add("bad", "not finite");
  if (report.has(SignalFlag::step_skipped)) add("warn", "skipped");
  if (report.has(SignalFlag::rolled_back)) add("warn", "rolled back");
  if (report.has(SignalFlag::step_repeated)) add("warn", "done again");
  if (report.has(SignalFlag::out_of_memory)) add("warn", "out of memory, run again");
  if (report.has(SignalFlag::finished)) add("", "finished");
  if (report.has(SignalFlag::watching)) add("", "watching");
  if (slow == nullptr) return out;
  add("warn", fmt::format("slow in {}", to_string(slow->phase())));
  return fmt::format("{}<small>{} since round {}</small>", out, times_text(slow->slowdown_ratio),
                     grouped(slow->since.value()));
}

std::string memory_text(const RankRow& row) {
  const RankSignal& report = row.report;
  if (report.memory_used_bytes == 0 && report.memory_peak_bytes == 0) return "–";
  if (report.memory_limit_bytes == 0) return bytes_text(report.memory_peak_bytes);
  const auto peak = static_cast<double>(report.memory_peak_bytes);
  return percent_text(peak / static_cast<double>(report.memory_limit_bytes), 0);
}

void add_missing(Table& table, const std::vector<FaultyReport>& faults) {
  const std::string mark = tag("bad", "missing");
  std::size_t missing = 0;
  for (const FaultyReport& fault : faults) {
    if (fault.fault != ReportFault::missing || ++missing > kMissingNamed) continue;
    table.add({std::to_string(fault.rank.value()), mark + " no report for this round"}, "gone");
  }
  if (missing > kMissingNamed)
    table.add({"", mark + " " + grouped(missing - kMissingNamed) + " more ranks"}, "gone");
}

std::string headline(const Snapshot& s) {
  const RankCounts counts = rank_counts(s);
  std::string text =
      fmt::format("{} of {} training", grouped(static_cast<std::uint64_t>(counts.training)),
                  grouped(static_cast<std::uint64_t>(s.job->world_size)));
  if (counts.missing > 0) text += ", " + std::to_string(counts.missing) + " missing";
  if (counts.finished > 0) text += ", " + std::to_string(counts.finished) + " finished";
  if (counts.watching > 0) text += ", " + std::to_string(counts.watching) + " watching";
  const std::size_t rows = s.ranks.table->rows.size();
  if (rows > kShowAll)
    text += fmt::format(". The {} slowest are shown; own work is {} to {}, median {}",
                        kSlowestShown, seconds_text(s.summary.own_seconds.min),
                        seconds_text(s.summary.own_seconds.max),
                        seconds_text(s.summary.own_seconds.median));
  return text + ".";
}

std::string ranks_section(const Snapshot& s) {
  double longest = 0;
  const auto rows = rows_shown(s.ranks);
  for (const RankRow* row : rows) {
    double sum = 0;
    for (const float seconds : row->phase_seconds) sum += static_cast<double>(seconds);
    longest = std::max(longest, sum);
  }
  Table table({"Rank/n", "Own work/n", "To median/n", "Step/wide", "Memory/n wide", "Remarks"});
  add_missing(table, s.ranks.table->faults);
  for (const RankRow* row : rows) {
    const SlowRank* slow = find_slow(s.ranks, row->report.rank);
    table.add({std::to_string(row->report.rank.value()), seconds_text(row->own_seconds),
               times_text(row->slowdown_ratio), phase_bar(*row, longest), memory_text(*row),
               remarks(*row, slow, s.stall.stall.get())},
              slow != nullptr ? "slow" : "");
  }
  return fmt::format("<section class=\"card\"><h2>Ranks</h2><p class=\"hint\">{}</p>{}</section>",
                     headline(s), table.html());
}

}  // namespace

void RanksView::mark_seen(const StepRecord& record) {
  has_reported.resize(static_cast<std::size_t>(std::max(record.job.world_size, 0)), false);
  for (const RankSignal& report : record.signals.reports) {
    const auto rank = static_cast<std::size_t>(report.rank.value());
    if (rank < has_reported.size()) has_reported[rank] = true;
  }
}

std::int32_t RanksView::ranks_seen() const {
  return static_cast<std::int32_t>(std::count(has_reported.begin(), has_reported.end(), true));
}

bool is_due(const RankTable& table, const StepRecord& record) {
  const double age = record.signals.now.seconds - table.time.seconds;
  return record.job.world_size <= kRefreshEveryRound || table.rows.empty() ||
         age >= kRefreshSeconds || age < 0;
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
  return table;
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

Topic ranks_topic() {
  return {.title = "Ranks",
          .metrics = metrics,
          .put_status = put_status,
          .put_rank = put_rank,
          .documents = {{"/api/v1/ranks", "every rank, paged: ?offset=0&limit=100", ranks_json}},
          .sections = {{ranks_section, Section::Width::half}}};
}

}  // namespace cox::metrics
