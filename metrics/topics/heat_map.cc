#include "metrics/topics/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "coordinator/io/json.h"
#include "metrics/format.h"
#include "metrics/request.h"
#include "metrics/topics/ranks.h"

namespace cox::metrics {
namespace {

constexpr double kMostHundredths = 65'535;
constexpr std::size_t kSlowestShown = kHeatRanks / 2;
constexpr std::size_t kRowPixels = 14;    // height of a label
constexpr std::size_t kRunsTitled = 100;  // of the hottest levels, for the size of the page

constexpr std::size_t kNoLevel = kHeatLevels.size();  // no report

std::size_t level_of(std::uint16_t hundredths) {
  return hundredths == HeatColumn::kNone ? kNoLevel : heat_level(hundredths / 100.0);
}

std::uint16_t hundredths_of(const RankSignal& report, double median) {
  if (report.rounds == 0 || !(median > 0) || report.has(SignalFlag::finished))
    return HeatColumn::kNone;
  double own = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (is_own_work(static_cast<Phase>(p))) own += static_cast<double>(report.phase_seconds[p]);
  }
  const double hundredths = 100 * own / report.rounds / median;
  if (!std::isfinite(hundredths) || hundredths < 0) return HeatColumn::kNone;
  return static_cast<std::uint16_t>(std::lround(std::clamp(hundredths, 1.0, kMostHundredths)));
}

// Returns the mean over the rounds in which the rank worked; 0 if the rank never worked.
double mean_of(const HeatMap& map, std::size_t rank) {
  double sum = 0;
  double count = 0;
  for (const auto& column : map.columns) {
    sum += column->of(rank);
    count += column->of(rank) != HeatColumn::kNone;
  }
  return count > 0 ? sum / count : 0;
}

// Run is a series of neighbouring rounds of one rank with the same level.
struct Run {
  std::size_t row = 0;
  std::size_t first = 0;  // column
  std::size_t length = 0;
  std::size_t level = 0;
  std::uint16_t low = 0;
  std::uint16_t high = 0;
};

void add_runs(const HeatMap& map, std::size_t rank, std::size_t row, std::vector<Run>& runs) {
  for (std::size_t i = 0; i < map.columns.size(); ++i) {
    const std::uint16_t value = map.columns[i]->of(rank);
    const std::size_t level = level_of(value);
    const bool goes_on = i > 0 && runs.back().level == level;
    if (!goes_on) runs.push_back({row, i, 0, level, value, value});
    Run& run = runs.back();
    ++run.length;
    run.low = std::min(run.low, value);
    run.high = std::max(run.high, value);
  }
}

std::string ratio_text(double hundredths) {
  return times_text(hundredths / 100);
}

// Returns the levels whose runs all get a title. Levels get titles from runs without a report to
// the coolest level, while kRunsTitled allows.
std::array<bool, kNoLevel + 1> titled_levels(const std::vector<Run>& runs) {
  std::array<std::size_t, kNoLevel + 1> count{};
  for (const Run& run : runs) ++count[run.level];
  std::array<bool, kNoLevel + 1> titled{};
  std::size_t left = kRunsTitled;
  for (std::size_t level = kNoLevel + 1; level-- > 0;) {
    if (level == kOrdinaryHeat) continue;  // the row's own title covers ordinary runs
    if (count[level] > left) break;
    left -= count[level];
    titled[level] = true;
  }
  return titled;
}

std::string title_of(const HeatMap& map, const std::vector<std::size_t>& ranks, const Run& run) {
  const std::uint64_t first = map.columns[run.first]->round.value();
  const std::uint64_t last = map.columns[run.first + run.length - 1]->round.value();
  std::string text = fmt::format("rank {}, round {}", ranks[run.row], first);
  if (last != first) text += fmt::format(" to {}", last);
  if (run.level == kNoLevel) return text + ": no work reported";
  text += ": " + ratio_text(run.low);
  return run.high == run.low ? text : text + " to " + ratio_text(run.high);
}

// Returns the text of a rank's row for screen readers and for the pointer.
std::string row_title(const HeatMap& map, std::size_t rank) {
  std::uint16_t high = 0;
  std::uint64_t round = 0;
  for (const auto& column : map.columns) {
    if (column->of(rank) <= high) continue;
    high = column->of(rank);
    round = column->round.value();
  }
  if (high == 0) return fmt::format("rank {}: no work reported", rank);
  return fmt::format("rank {}: {} on average, at most {} in round {}", rank,
                     ratio_text(mean_of(map, rank)), ratio_text(high), round);
}

std::string piece_of(const Run& run) {
  return fmt::format("M{} {}h{}v1h-{}z", run.first, run.row, run.length, run.length);
}

// Returns the picture's paths: a strip per rank, then the runs of other levels. Runs of a level
// without titles share one path.
List paths_of(const HeatMap& map, const std::vector<std::size_t>& ranks) {
  std::vector<Run> runs;
  List paths;
  const auto add = [&paths](std::size_t level, std::string d, std::string title) {
    paths.push_back({{"level", level}, {"d", std::move(d)}, {"title", std::move(title)}});
  };
  for (std::size_t row = 0; row < ranks.size(); ++row) {
    add_runs(map, ranks[row], row, runs);
    add(kOrdinaryHeat, fmt::format("M0 {}h{}v1H0z", row, map.columns.size()),
        row_title(map, ranks[row]));
  }
  const auto titled = titled_levels(runs);
  std::array<std::string, kNoLevel + 1> plain;
  for (const Run& run : runs) {
    if (run.level != kOrdinaryHeat && !titled[run.level]) plain[run.level] += piece_of(run);
  }
  for (std::size_t level = 0; level < plain.size(); ++level) {
    if (!plain[level].empty()) add(level, std::move(plain[level]), "");
  }
  for (const Run& run : runs) {
    if (titled[run.level]) add(run.level, piece_of(run), title_of(map, ranks, run));
  }
  return paths;
}

List labels(const Snapshot& s, const std::vector<std::size_t>& ranks) {
  return list_of(ranks, [&s](std::size_t rank) {
    const SlowRank* slow = s.view<RanksView>().slow.find(RankId(static_cast<std::int32_t>(rank)));
    return Record{{"rank", rank},
                  {"is_slow", slow != nullptr && slow->state == SlowState::confirmed}};
  });
}

void put_rank(io::JsonWriter& json, const HeatMap& map, std::size_t rank) {
  json.begin_object().field("rank", rank).key("work_ratio").begin_array();
  for (const auto& column : map.columns) {
    const std::uint16_t value = column->of(rank);
    value == HeatColumn::kNone ? json.null() : json.value(value / 100.0);
  }
  json.end_array().end_object();
}

}  // namespace

std::size_t heat_level(double ratio) {
  std::size_t level = 0;
  while (level + 1 < kHeatLevels.size() && ratio >= kHeatLevels[level + 1].from) ++level;
  return level;
}

List heat_keys() {
  std::size_t level = 0;
  return list_of(kHeatLevels, [&level](const HeatLevel& heat) {
    return Record{{"level", level++}, {"text", heat.text}};
  });
}

void HeatMap::add(const Round& round) {
  if (!round.has_figures) return;
  const StepRecord& record = round.record;
  auto column = std::make_shared<HeatColumn>();
  column->round = record.signals.round;
  column->hundredths.resize(static_cast<std::size_t>(std::max(record.job.world_size, 0)));
  const double median = record.decision.summary.own_seconds.median;
  for (const RankSignal& report : record.signals.reports) {
    const auto rank = static_cast<std::size_t>(report.rank.value());
    if (rank < column->hundredths.size()) column->hundredths[rank] = hundredths_of(report, median);
  }
  if (columns.size() == kHeatRounds) columns.erase(columns.begin());
  columns.push_back(std::move(column));
}

std::vector<std::size_t> heat_ranks(const Snapshot& snapshot) {
  const auto world = static_cast<std::size_t>(std::max(snapshot.job->world_size, 0));
  const HeatMap& heat = snapshot.view<HeatMap>();
  std::vector<double> key(world);  // ranks with larger keys are shown first
  for (std::size_t rank = 0; rank < world; ++rank) key[rank] = mean_of(heat, rank);
  for (const SlowRank& slow : snapshot.view<RanksView>().slow.ranks) {
    const auto rank = static_cast<std::size_t>(slow.rank.value());
    if (rank < world && slow.state != SlowState::recovered) key[rank] += kMostHundredths;
  }
  std::vector<std::size_t> ranks(world);
  for (std::size_t rank = 0; rank < world; ++rank) ranks[rank] = rank;
  if (world <= kHeatRanks) return ranks;
  const auto others = ranks.begin() + kSlowestShown;
  std::partial_sort(ranks.begin(), others, ranks.end(), [&key](std::size_t a, std::size_t b) {
    return key[a] != key[b] ? key[a] > key[b] : a < b;
  });
  std::sort(others, ranks.end());
  const std::size_t spread = kHeatRanks - kSlowestShown;
  const std::size_t rest = world - kSlowestShown;
  for (std::size_t i = 0; i < spread; ++i)
    ranks[kSlowestShown + i] = ranks[kSlowestShown + i * (rest - 1) / (spread - 1)];
  ranks.resize(kHeatRanks);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Record heat_section(const Snapshot& s) {
  const HeatMap& heat = s.view<HeatMap>();
  const auto& columns = heat.columns;
  if (columns.empty()) return {};
  const std::vector<std::size_t> ranks = heat_ranks(s);
  const auto world = static_cast<std::uint64_t>(s.job->world_size);
  const std::uint64_t first = columns.front()->round.value();
  const std::uint64_t last = columns.back()->round.value();
  return {{"rounds", columns.size()},
          {"ranks", ranks.size()},
          {"of_ranks", ranks.size() < world ? grouped(world) : ""},
          {"labels", labels(s, ranks)},
          {"first", first},
          {"last", last},
          {"first_text", grouped(first)},
          {"last_text", grouped(last)},
          {"pixels", kRowPixels * ranks.size()},
          {"paths", paths_of(heat, ranks)},
          {"keys", heat_keys()},
          {"no_level", kNoLevel}};
}

Result<std::string> heat_json(const Snapshot& s, std::string_view query) {
  const auto asked = query_number(query, "rank");
  if (!asked.ok()) return asked.status();
  const HeatMap& heat = s.view<HeatMap>();
  io::JsonWriter json;
  json.begin_object().field("world_size", s.job->world_size).key("rounds").begin_array();
  for (const auto& column : heat.columns) json.value(column->round.value());
  json.end_array().key("ranks").begin_array();
  if (!asked->has_value()) {
    for (const std::size_t rank : heat_ranks(s)) put_rank(json, heat, rank);
  } else if (**asked < static_cast<std::uint64_t>(std::max(s.job->world_size, 0))) {
    put_rank(json, heat, static_cast<std::size_t>(**asked));
  }
  json.end_array().end_object();
  return json.take();
}

Topic heat_topic() {
  return {.title = "Rounds of the ranks",
          .follow = grow<HeatMap>,
          .documents = {{"/api/v1/ranks/rounds",
                         "own work over the median in the last 60 rounds; ?rank=7 of one rank",
                         heat_json}},
          .sections = {{"heat_map.html", heat_section, Section::Width::half}}};
}

}  // namespace cox::metrics
