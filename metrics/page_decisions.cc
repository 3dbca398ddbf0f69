#include <algorithm>

#include "metrics/format.h"
#include "metrics/html.h"
#include "metrics/status_page.h"

namespace cox::metrics {
namespace {

constexpr std::size_t kShown = 30;

std::string_view outcome_class(Outcome outcome) {
  switch (outcome) {
    case Outcome::changed:
      return "good";
    case Outcome::clamped:
    case Outcome::vetoed:
      return "warn";
    default:
      return "";
  }
}

bool is_quiet(Outcome outcome) {
  return outcome == Outcome::unchanged || outcome == Outcome::unspecified;
}

std::string policy_name(PolicyKind kind) {
  if (kind == PolicyKind::none) return "decide";
  std::string name(to_string(kind));
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string rounds_text(const DecisionEntry& entry) {
  if (entry.first_round == entry.last_round) return grouped(entry.last_round.value());
  return grouped(entry.first_round.value()) + "–" + grouped(entry.last_round.value());
}

std::string entry_html(const DecisionEntry& entry) {
  const Reason& reason = entry.reason;
  std::string out = is_quiet(reason.outcome) ? "<li class=\"quiet\">" : "<li>";
  out += "<span class=\"when\" title=\"" + utc_text(entry.last_time) + "\">" + rounds_text(entry) +
         "</span>";
  out += "<span class=\"who\">" + policy_name(reason.policy) + "</span><span><span class=\"tag " +
         std::string(outcome_class(reason.outcome)) + "\">" +
         std::string(to_string(reason.outcome)) + "</span></span><span class=\"why\">" +
         escape(reason.text);
  if (entry.count > 1) out += " <small>" + grouped(entry.count) + " times</small>";
  return out + "</span></li>";
}

}  // namespace

std::string page_decisions(const Snapshot& s) {
  std::string out =
      "<section class=\"card\"><h2>Decisions</h2><p class=\"hint\">What the policies saw, changed "
      "or left alone, and why. Newest first, by round.</p>";
  if (s.decisions->empty())
    return out +
           "<p class=\"group\">None yet. The policies look at every round and speak when there is "
           "something to say.</p></section>";
  out += "<ol class=\"log\">";
  const std::size_t shown = std::min(kShown, s.decisions->size());
  for (std::size_t i = 0; i < shown; ++i)
    out += entry_html(*(*s.decisions)[s.decisions->size() - 1 - i]);
  out += "</ol>";
  if (s.decisions->size() > shown)
    out += "<p class=\"hint group\"><a href=\"/api/v1/decisions\">" +
           std::to_string(s.decisions->size() - shown) + " earlier ones</a></p>";
  return out + "</section>";
}

}  // namespace cox::metrics
