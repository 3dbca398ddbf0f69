// The section Ranks of the status page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "metrics/format.h"
#include "metrics/html.h"
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

// All ranks, or in large jobs those that are not ordinary and then those with most own work.
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

std::string segment(std::size_t phase, std::string_view part, double share, double seconds) {
  if (!(share > 0.001)) return {};
  return fmt::format("<i class=\"ph{}{}\" style=\"width:{}%\" title=\"{} {}\"></i>", phase,
                     part.empty() ? "" : " part", fixed(100 * share, 1),
                     part.empty() ? kPhaseNames[phase] : part, seconds_text(seconds));
}

// Returns the part of a phase that is hatched: what it costs to wait, or to compute again.
double hatched_seconds(const RankRow& row, Phase phase) {
  if (phase == Phase::communication) return row.waiting_seconds.value_or(0);
  return phase == Phase::backward ? row.recompute_seconds : 0;
}

std::string phase_bar(const RankRow& row, double longest) {
  std::string out = "<div class=\"bar\" aria-hidden=\"true\">";
  for (std::size_t p = 0; p < kPhases && longest > 0; ++p) {
    const double whole = static_cast<double>(row.phase_seconds[p]);
    const double part = hatched_seconds(row, static_cast<Phase>(p));
    const bool waits = static_cast<Phase>(p) == Phase::communication;
    out += segment(p, "", (whole - part) / longest, whole - part);
    out += segment(p, waits ? "waiting" : "recompute", part / longest, part);
  }
  return out + "</div>";
}

// What the rank does right now, in a wait that lasts.
std::string remark_of(const Stall& stall, RankId rank) {
  if (stall.is_waiting(rank)) return tag("", "waiting") + " ";
  for (const RankMark& mark : stall.culprits) {
    if (mark.rank != rank) continue;
    return fmt::format("{} <small>{}</small> ", tag("bad", "others wait"), text_of(mark));
  }
  return {};
}

// "less than 1 in 10^12", of chance alone.
std::string chance_text(double rarity) {
  const double power = std::clamp(std::floor(rarity), 0.0, 99.0);
  if (!(power >= 1)) return {};
  return fmt::format("; chance alone: 1 in 10<sup>{}</sup>", static_cast<int>(power));
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
  return fmt::format("{} to {}", fixed(low, 2), fixed(high, 2));
}

// "in forward since round 41, against the other ranks; chance alone: 1 in 10^12".
std::string evidence_text(const SlowRank& slow) {
  std::string when = "since round " + grouped(slow.since.value());
  if (slow.state == SlowState::recovered)
    when = fmt::format("from round {} to {}", grouped(slow.since.value()),
                       grouped(slow.until.value()));
  std::string text = fmt::format("in {} {}, {}{}", to_string(slow.phase()), when,
                                 compared_text(slow.against), chance_text(slow.rarity));
  if (slow.short_spells > 0)
    text += fmt::format("; {} short {} before", slow.short_spells,
                        slow.short_spells == 1 ? "spell" : "spells");
  return text;
}

std::string state_tag(const SlowRank* slow) {
  if (slow == nullptr) return tag("", "ordinary");
  if (slow->state == SlowState::confirmed) return tag("warn", "slow");
  return slow->state == SlowState::suspected ? tag("", "suspected") : tag("good", "recovered");
}

std::string remarks(const RankRow& row, const Stall& stall) {
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
  return out;
}

std::string rank_cell(const HostNotes& hosts, RankId rank) {
  const HostEvidence* host = hosts.find(rank);
  const std::string number =
      fmt::format("<a href=\"{}?rank={}\">{}</a>", kRankPath, rank.value(), rank.value());
  if (host == nullptr || host_name(*host).empty()) return number;
  return fmt::format("{} <small>{}</small>", number, escape(host_name(*host)));
}

// Slowness with its interval where the estimates have one, else this round's alone.
std::string ratio_cell(const RankRow& row, const SlowRank* slow) {
  if (slow == nullptr || slow->state == SlowState::recovered) return times_text(row.slowdown_ratio);
  return fmt::format("{} <small>{}</small>", times_text(slow->slowdown_ratio),
                     interval_text(slow->slowdown_low, slow->slowdown_high));
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

// "1 slow, 2 suspected, 1,021 ordinary".
std::string speeds_text(const SlowFindings& slow) {
  std::string text;
  const auto add = [&text](std::int32_t count, std::string_view state) {
    if (count > 0)
      text += fmt::format(", {} {}", grouped(static_cast<std::uint64_t>(count)), state);
  };
  add(slow.confirmed, "slow");
  add(slow.suspected, "suspected");
  add(slow.recovered, "recovered");
  return text;
}

std::string headline(const Snapshot& s) {
  const RankCounts counts = rank_counts(s);
  std::string text =
      fmt::format("{} of {} training", grouped(static_cast<std::uint64_t>(counts.training)),
                  grouped(static_cast<std::uint64_t>(s.job->world_size)));
  if (counts.missing > 0) text += ", " + std::to_string(counts.missing) + " missing";
  if (counts.finished > 0) text += ", " + std::to_string(counts.finished) + " finished";
  if (counts.watching > 0) text += ", " + std::to_string(counts.watching) + " watching";
  text += speeds_text(s.view<RanksView>().slow);
  const std::size_t rows = s.view<RanksView>().table->rows.size();
  if (rows > kShowAll)
    text += fmt::format(
        ". {} are shown, the slowest first, <a href=\"/api/v1/ranks\">all</a>; own work is {} to "
        "{}, median {}",
        kSlowestShown, seconds_text(s.summary.own_seconds.min),
        seconds_text(s.summary.own_seconds.max), seconds_text(s.summary.own_seconds.median));
  return text + ".";
}

std::string job_note(const SlowJob& job) {
  return fmt::format(
      "<p class=\"note\">The whole job is slower than it was: {} ({}) since round {}{}. No rank is "
      "to blame; look at what the ranks share.</p>",
      times_text(job.slowdown_ratio), interval_text(job.slowdown_low, job.slowdown_high),
      grouped(job.since.value()), chance_text(job.rarity));
}

std::string host_notes(const std::vector<SlowHost>& hosts) {
  std::string out;
  for (std::size_t i = 0; i < std::min(hosts.size(), kHostsNamed); ++i) {
    const SlowHost& host = hosts[i];
    out += fmt::format(
        "<p class=\"note\">All {} ranks of host {} are slow, {} since round {}: look at the host "
        "before its ranks.</p>",
        host.ranks, host.node.value(), times_text(host.slowdown_ratio),
        grouped(host.since.value()));
  }
  if (hosts.size() > kHostsNamed)
    out += fmt::format("<p class=\"note\">{} more hosts are slow as a whole.</p>",
                       hosts.size() - kHostsNamed);
  return out;
}

// Adds a row with what is known of the rank above it.
void add_evidence(Table& table, const SlowRank* slow, const HostEvidence* host) {
  std::string text = slow != nullptr ? evidence_text(*slow) : "";
  const std::string words = host != nullptr ? host_words(*host) : "";
  if (!words.empty()) text += (text.empty() ? "host: " : ". Host: ") + escape(words);
  if (!text.empty()) table.add({"", fmt::format("<small>{}</small>", text)}, "evidence");
}

// What the words and colours of the table mean, as far as they occur in it.
std::string keys(const std::vector<const RankRow*>& rows, const SlowFindings& slow) {
  std::string out;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const bool occurs =
        std::ranges::any_of(rows, [p](const RankRow* row) { return row->phase_seconds[p] > 0; });
    if (occurs) out += fmt::format("<li><i class=\"ph{}\"></i>{}</li>", p, kPhaseNames[p]);
  }
  const auto any_part = [&rows](Phase phase) {
    return std::ranges::any_of(
        rows, [phase](const RankRow* row) { return hatched_seconds(*row, phase) > 0; });
  };
  if (any_part(Phase::communication))
    out += "<li><i class=\"ph4 part\"></i>waiting for the last rank</li>";
  if (any_part(Phase::backward)) out += "<li><i class=\"ph2 part\"></i>recompute and offload</li>";
  out = fmt::format("<ul class=\"keys\">{}</ul>", out);
  if (slow.ranks.empty()) return out;
  return out +
         hint(
             "Slow: for certain, and for longer than a pause of the machine. Suspected: slow, "
             "but not for that long yet. Recovered: as fast as it should be again. Ratios are "
             "with their 95 % interval.");
}

}  // namespace

std::string ranks_section(const Snapshot& s) {
  const RanksView& view = s.view<RanksView>();
  double longest = 0;
  const auto rows = rows_shown(view);
  for (const RankRow* row : rows) {
    double sum = 0;
    for (const float seconds : row->phase_seconds) sum += static_cast<double>(seconds);
    longest = std::max(longest, sum);
  }
  Table table({"Rank/n", "State", "Own work/n", "To median/n", "Step/wide", "Waited/n wide",
               "Recompute/n wide", "Memory/n wide", "Remarks"});
  add_missing(table, view.table->faults);
  for (const RankRow* row : rows) {
    const SlowRank* slow = view.slow.find(row->report.rank);
    const bool is_slow = slow != nullptr && slow->state == SlowState::confirmed;
    table.add(
        {rank_cell(view.hosts, row->report.rank), state_tag(slow), seconds_text(row->own_seconds),
         ratio_cell(*row, slow), phase_bar(*row, longest), waiting_text(*row), recompute_text(*row),
         memory_text(*row), remarks(*row, s.view<StallView>().stall)},
        is_slow ? "slow" : "");
    add_evidence(table, slow, view.hosts.find(row->report.rank));
  }
  return card("Ranks", hint(headline(s)) + (view.slow.job ? job_note(*view.slow.job) : "") +
                           host_notes(view.slow.hosts) + table.html() + keys(rows, view.slow) +
                           (view.table->rows.size() > kShowAll ? rank_form(s) : ""));
}

std::string rank_detail(const Snapshot& s, RankId rank) {
  const RanksView& view = s.view<RanksView>();
  const auto& rows = view.table->rows;
  const auto row = std::ranges::find(rows, rank, [](const RankRow& r) { return r.report.rank; });
  if (row == rows.end()) return hint("It has not reported in the newest round.");
  const SlowRank* slow = view.slow.find(rank);
  double total = 0;
  for (const float seconds : row->phase_seconds) total += static_cast<double>(seconds);
  std::string out = facts({{"State", state_tag(slow)},
                           {"Step", grouped(row->report.step.value())},
                           {"Own work", seconds_text(row->own_seconds)},
                           {"To the median", ratio_cell(*row, slow)},
                           {"Waited for the last rank", waiting_text(*row)},
                           {"Recompute", recompute_text(*row)},
                           {"Memory", memory_text(*row)},
                           {"Samples a step", rate_text(row->samples_per_step)}});
  out += phase_bar(*row, total) + keys({&*row}, {});
  if (slow != nullptr) out += hint(evidence_text(*slow));
  const HostEvidence* host = view.hosts.find(rank);
  if (host != nullptr) out += hint("Host: " + escape(host_words(*host)));
  return out + "<p>" + remarks(*row, s.view<StallView>().stall) + "</p>";
}

std::string rank_form(const Snapshot& s) {
  return fmt::format(
      "<form class=\"ask\" action=\"{}\"><label for=\"ask-rank\">More about rank</label><input "
      "id=\"ask-rank\" name=\"rank\" type=\"number\" min=\"0\" max=\"{}\" value=\"0\"/>"
      "<button>Show</button></form>",
      kRankPath, s.job->world_size - 1);
}

}  // namespace cox::metrics
