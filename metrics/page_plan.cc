#include <algorithm>
#include <cmath>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/plan_view.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kNamedCells = 48;  // blocks; more are drawn as small cells
constexpr std::size_t kClassesShown = 4;
constexpr std::size_t kRunsShown = 16;

std::string cell_class(Precision precision, MemoryAction action) {
  return "q" + std::to_string(static_cast<int>(precision)) + " a" +
         std::to_string(static_cast<int>(action));
}

const BlockCost* cost_of(const Snapshot& s, std::size_t block) {
  if (!s.costs || block >= s.costs->size() || !(*s.costs)[block].is_known) return nullptr;
  return &(*s.costs)[block];
}

// "forward 41 ms, backward 80 ms, 12 MiB saved, 198,272 parameters"
std::string cost_text(const BlockCost& cost) {
  return "forward " + seconds_text(static_cast<double>(cost.profile.forward_seconds)) +
         ", backward " + seconds_text(static_cast<double>(cost.profile.backward_seconds)) + ", " +
         bytes_text(cost.profile.saved_bytes) + " saved, " + grouped(cost.profile.parameters) +
         " parameters, on rank " + std::to_string(cost.rank.value());
}

std::string cell(const Snapshot& s, std::size_t block, const BlockRun& run,
                 std::size_t prefix_length) {
  const std::string name = block_name(*s.job, block);
  const BlockCost* cost = cost_of(s, block);
  const std::string precision(to_string(run.precision));
  const std::string action(to_string(run.action));
  std::string out = "<li class=\"" + cell_class(run.precision, run.action) + "\" title=\"" +
                    escape(name) + ": " + precision + ", " + action +
                    (cost != nullptr ? "; " + cost_text(*cost) : "") + "\">";
  if (prefix_length == std::string::npos) return out + "</li>";
  out += "<em>" + escape(name.substr(prefix_length)) + "</em><b>" + precision + "</b><span>" +
         action + "</span>";
  if (cost != nullptr) out += "<span>" + bytes_text(cost->profile.saved_bytes) + "</span>";
  return out + "</li>";
}

// Where the slowest block loses the most time, in words; empty before anything was measured.
std::string dearest_block(const Snapshot& s) {
  const BlockCost* dearest = nullptr;
  for (std::size_t block = 0; s.costs && block < s.costs->size(); ++block) {
    const BlockCost* cost = cost_of(s, block);
    if (cost == nullptr) continue;
    const auto seconds = [](const BlockCost& c) {
      return c.profile.forward_seconds + c.profile.backward_seconds;
    };
    if (dearest == nullptr || seconds(*cost) > seconds(*dearest)) dearest = cost;
  }
  if (dearest == nullptr) return {};
  return "<p class=\"hint group\">Dearest block: " +
         escape(block_name(*s.job, dearest->profile.block.value())) + ", " + cost_text(*dearest) +
         ".</p>";
}

std::string strip(const Snapshot& s, const std::vector<BlockRun>& runs) {
  const bool named = s.plan->precision.size() <= kNamedCells;
  const std::size_t prefix_length = named ? common_prefix(*s.job).size() : std::string::npos;
  std::string out =
      named ? "<ul class=\"strip\">" : "<ul class=\"strip small\" aria-hidden=\"true\">";
  for (const BlockRun& run : runs) {
    for (std::size_t block = run.first; block <= run.last; ++block)
      out += cell(s, block, run, prefix_length);
  }
  return out + "</ul>";
}

std::string run_table(const JobFacts& job, const std::vector<BlockRun>& runs) {
  std::string out =
      "<div class=\"scroll\"><table><thead><tr><th>Blocks</th><th>Precision</th>"
      "<th>Memory</th></tr></thead><tbody>";
  for (std::size_t i = 0; i < std::min(runs.size(), kRunsShown); ++i) {
    const BlockRun& run = runs[i];
    std::string names = escape(block_name(job, run.first));
    if (run.last > run.first)
      names += " to " + escape(block_name(job, run.last)) + " (" +
               std::to_string(run.last - run.first + 1) + ")";
    out += "<tr><td>" + names + "</td><td>" + std::string(to_string(run.precision)) + "</td><td>" +
           std::string(to_string(run.action)) + "</td></tr>";
  }
  if (runs.size() > kRunsShown)
    out += "<tr><td colspan=\"3\"><a href=\"/api/v1/plan\">" +
           std::to_string(runs.size() - kRunsShown) + " more</a></td></tr>";
  return out + "</tbody></table></div>";
}

// "Rank 2", "Ranks 0, 3", "12 ranks".
std::string profile_title(const Plan& plan, std::size_t index, std::int32_t ranks) {
  constexpr std::int32_t kNamed = 4;
  std::string names;
  for (std::size_t r = 0; ranks <= kNamed && r < plan.rank_profile.size(); ++r) {
    if (plan.rank_profile[r].value() == index)
      names += (names.empty() ? "" : ", ") + std::to_string(r);
  }
  if (names.empty()) return grouped(static_cast<std::uint64_t>(ranks)) + " ranks";
  return (ranks == 1 ? "Rank " : "Ranks ") + names;
}

std::string class_section(const Snapshot& s, std::size_t index, std::int32_t ranks) {
  const auto runs = block_runs(*s.plan, index);
  std::string out = "<div class=\"group\">";
  if (s.plan->profiles.size() > 1) out += "<h3>" + profile_title(*s.plan, index, ranks) + "</h3>";
  out += strip(s, runs);
  if (s.plan->precision.size() > kNamedCells) out += run_table(*s.job, runs);
  return out + "</div>";
}

std::string activity(const Snapshot& s) {
  const Plan& plan = *s.plan;
  if (plan.id.number == 0 && s.memory)
    return "The plan every rank starts with, made from steps measured before the first one.";
  if (plan.id.number == 0) return "The plan every rank starts with; nothing has been changed yet.";
  std::string text = "Published in round " + grouped(s.plan_times.published_round.value());
  if (plan.activated_round)
    text += ", active since round " + grouped(plan.activated_round->value());
  else
    text += ", waiting until every rank holds it";
  return text + ".";
}

// "12 of 14 blocks in bf16, 4 recompute." What is the same everywhere is said once.
std::string mix_text(const Snapshot& s) {
  const KnobMix mix = knob_mix(*s.plan, s.job->world_size);
  const auto blocks = static_cast<double>(s.plan->precision.size());
  std::string text;
  for (std::size_t k = 0; k < mix.precision_blocks.size(); ++k) {
    if (mix.precision_blocks[k] == 0) continue;
    const bool all = mix.precision_blocks[k] == blocks;
    text += (text.empty() ? " " : ", ") + (all ? "all" : fixed(mix.precision_blocks[k], 0)) +
            " in " + std::string(kPrecisionNames[k]);
  }
  for (std::size_t k = 1; k < mix.action_blocks.size(); ++k) {
    if (mix.action_blocks[k] > 0)
      text += ", " +
              fixed(mix.action_blocks[k],
                    mix.action_blocks[k] == std::floor(mix.action_blocks[k]) ? 0 : 1) +
              " " + std::string(kMemoryActionNames[k]) +
              (s.plan->profiles.size() > 1 ? " on average" : "");
  }
  const std::string prefix = common_prefix(*s.job);
  return " Of " + fixed(blocks, 0) + " blocks" + text + "." +
         (prefix.empty() ? "" : " Names begin with <code>" + escape(prefix) + "</code>");
}

std::string other_knobs(const Snapshot& s) {
  const Plan& plan = *s.plan;
  std::string text;
  if (plan.step_samples != 0) text += " Steps of " + grouped(plan.step_samples) + " samples.";
  if (!plan.shares.empty()) {
    const auto [low, high] = std::minmax_element(plan.shares.begin(), plan.shares.end());
    text +=
        " Shares of the batch from " + std::to_string(*low) + " to " + std::to_string(*high) + ".";
  }
  if (plan.hold_until > s.summary.round)
    text += " All knobs rest until round " + grouped(plan.hold_until.value()) + ".";
  return text;
}

}  // namespace

std::string page_plan(const Snapshot& s) {
  const Plan& plan = *s.plan;
  std::string out = "<section class=\"card\"><h2>Plan " + grouped(plan.id.number) +
                    "</h2><p class=\"hint\">" + activity(s) + other_knobs(s);
  if (plan.precision.empty())
    return out + "</p><p class=\"group\">The job has named no blocks.</p></section>";
  out += mix_text(s) + "</p>";
  const auto sizes = profile_sizes(plan, s.job->world_size);
  const std::size_t shown = std::min(sizes.size(), kClassesShown);
  for (std::size_t c = 0; c < shown; ++c) out += class_section(s, c, sizes[c]);
  if (sizes.size() > shown)
    out += "<p class=\"group\"><a href=\"/api/v1/plan\">" + std::to_string(sizes.size() - shown) +
           " more profiles of ranks</a></p>";
  return out + dearest_block(s) + "</section>";
}

}  // namespace cox::metrics
