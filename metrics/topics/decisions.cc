#include "metrics/topics/decisions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "coordinator/decide/paired_ratio.h"
#include "metrics/blocks.h"
#include "metrics/format.h"
#include "metrics/json_parts.h"
#include "metrics/metric.h"
#include "metrics/pages/values.h"
#include "metrics/request.h"

namespace cox::metrics {
namespace {

constexpr std::uint64_t kMemoryRounds = 256;  // a reason after a longer silence is a new entry
constexpr std::size_t kShown = 30;
constexpr std::size_t kEffectsShown = 12;

bool same_matter(const Reason& a, const Reason& b) {
  return a.policy == b.policy && a.code == b.code && a.outcome == b.outcome && a.rank == b.rank &&
         a.block == b.block;
}

// Each change has an entry of its own; every other reason has one entry with a count.
bool may_repeat(Outcome outcome) {
  return outcome != Outcome::changed && outcome != Outcome::clamped;
}

// Returns the entry that `reason` repeats, or end().
DecisionList::iterator repeated(DecisionList& list, const Reason& reason, RoundId round) {
  if (!may_repeat(reason.outcome)) return list.end();
  return std::find_if(list.begin(), list.end(), [&](const auto& entry) {
    return same_matter(entry->reason, reason) &&
           entry->last_round.value() + kMemoryRounds >= round.value();
  });
}

void count_code(std::vector<CodeCount>& codes, ReasonCode code) {
  auto at = std::lower_bound(codes.begin(), codes.end(), code,
                             [](const CodeCount& c, ReasonCode k) { return c.code < k; });
  if (at == codes.end() || at->code != code) at = codes.insert(at, CodeCount{code, 0});
  ++at->count;
}

struct Names {
  std::vector<std::string> policies;
  std::vector<std::string> outcomes;  // all but unspecified
};

Names names() {
  Names all;
  for (const NamedPolicyKind& policy : kPolicyKinds) all.policies.emplace_back(policy.name);
  all.outcomes.assign(kOutcomeNames.begin() + 1, kOutcomeNames.end());
  return all;
}

// Reasons with a user's own code share one series.
void by_code(const Snapshot& s, const Emit& emit) {
  std::map<std::string_view, std::uint64_t> counts;
  for (const CodeCount& code : s.view<DecisionsView>().codes)
    counts[to_string(code.code)] += code.count;
  for (const auto& [code, count] : counts) emit(static_cast<double>(count), code);
}

constexpr std::array kVerdicts = {"helped", "did_not_help", "not_sure", "taken_back"};

// Returns a score of zeros for a policy whose decisions were never measured.
PolicyScore score_of(const Snapshot& s, PolicyKind policy) {
  for (const PolicyScore& score : s.view<DecisionsView>().scores) {
    if (score.policy == policy) return score;
  }
  return {.policy = policy};
}

std::vector<Metric> metrics() {
  using S = const Snapshot&;
  const auto [policies, outcomes] = names();
  return {
      counter("coxswain_decisions_total",
              "Reasons given, by policy and outcome; policy decide is Decide itself",
              per("policy", policies, "outcome", outcomes,
                  [](S s, std::size_t policy, std::size_t outcome) {
                    const auto kind = static_cast<std::size_t>(kPolicyKinds[policy].kind);
                    return s.view<DecisionsView>().counts[kind][outcome + 1];
                  })),
      counter("coxswain_reasons_total",
              "Reasons given, by code; a code appears with its first reason",
              open({{"code", {}}}, by_code)),
      counter("coxswain_policy_saved_seconds_total",
              "Seconds of training that measured changes of a policy gained or lost, against going "
              "on without them",
              per("policy", policies, "result", std::array{"gained", "lost"},
                  [](S s, std::size_t policy, std::size_t result) {
                    const PolicyScore score = score_of(s, kPolicyKinds[policy].kind);
                    return result == 0 ? score.seconds_gained : score.seconds_lost;
                  }),
              "seconds"),
      counter("coxswain_policy_verdicts_total",
              "Changes that promised a shorter step, by what a comparison of the rounds before and "
              "after found; taken_back counts among did_not_help",
              per("policy", policies, "verdict", kVerdicts,
                  [](S s, std::size_t policy, std::size_t verdict) {
                    const PolicyScore score = score_of(s, kPolicyKinds[policy].kind);
                    const std::uint32_t all[] = {score.helped, score.did_not_help, score.not_sure,
                                                 score.taken_back};
                    return all[verdict];
                  })),
      histogram("coxswain_decision_duration_seconds", "Time to decide on one round",
                [](S s) -> const BucketCounts& { return s.view<DecisionsView>().decide_seconds; }),
  };
}

void put_entry(io::JsonWriter& json, const JobFacts& job, const DecisionEntry& entry) {
  const Reason& reason = entry.reason;
  json.begin_object().field("policy", to_string(reason.policy));
  json.field("code", to_string(reason.code)).field("outcome", to_string(reason.outcome));
  json.field("first_round", entry.first_round.value())
      .field("last_round", entry.last_round.value());
  json.field("count", entry.count).field("time", entry.last_time.seconds);
  json.field("plan", entry.plan);
  put_id(json, "rank", reason.rank.value());
  put_id(json, "block", reason.block);
  json.field("block_name", named_block(job, reason.block));
  json.field("text", reason.text).end_object();
}

// Returns the entries whose newest round is ?since or later, newest first.
Result<std::string> decisions_json(const Snapshot& s, std::string_view query) {
  const auto since = query_number(query, "since");
  if (!since.ok()) return since.status();
  const DecisionList& list = *s.view<DecisionsView>().list;
  io::JsonWriter json;
  json.begin_object().field("round", s.summary.round.value()).key("decisions").begin_array();
  for (auto at = list.rbegin(); at != list.rend(); ++at) {
    if ((*at)->last_round.value() >= since->value_or(0)) put_entry(json, *s.job, **at);
  }
  json.end_array().end_object();
  return json.take();
}

void put_rounds(io::JsonWriter& json, std::string_view name, const MeasuredRounds& measured) {
  json.key(name);
  if (measured.rounds == 0) return static_cast<void>(json.null());
  json.begin_object().field("rounds", measured.rounds);
  put_known(json, "step_seconds", measured.step_seconds);
  put_known(json, "tokens_per_second", measured.tokens_per_second);
  put_known(json, "peak_bytes", measured.peak_bytes);
  json.end_object();
}

void put_effect(io::JsonWriter& json, const Effect& effect) {
  const Reason& reason = effect.reason;
  json.begin_object().field("policy", to_string(reason.policy));
  json.field("code", to_string(reason.code)).field("round", reason.round.value());
  json.field("step", effect.step).field("plan", effect.plan).field("text", reason.text);
  json.key("predicted").begin_object();
  put_known(json, "step_ratio", reason.forecast.step_ratio);
  put_known(json, "step_ratio_low", reason.forecast.step_ratio_low);
  put_known(json, "step_ratio_high", reason.forecast.step_ratio_high);
  put_known(json, "peak_bytes", reason.forecast.peak_bytes);
  json.end_object();
  put_rounds(json, "before", effect.before);
  put_rounds(json, "after", effect.after);
  json.key("measured").begin_object();
  put_known(json, "step_ratio", effect.measured.ratio);
  put_known(json, "step_ratio_low", effect.measured.low);
  put_known(json, "step_ratio_high", effect.measured.high);
  json.end_object();
  json.field("verdict", to_string(effect.verdict)).field("doubt", to_string(effect.doubt));
  json.field("seconds_saved", effect.seconds_saved).field("sharing", effect.sharing);
  json.field("taken_back", effect.is_taken_back).end_object();
}

void put_score(io::JsonWriter& json, const PolicyScore& score) {
  json.begin_object().field("policy", to_string(score.policy));
  json.field("helped", score.helped).field("did_not_help", score.did_not_help);
  json.field("not_sure", score.not_sure).field("taken_back", score.taken_back);
  json.field("seconds_gained", score.seconds_gained).field("seconds_lost", score.seconds_lost);
  json.field("seconds_promised", score.seconds_promised).end_object();
}

Result<std::string> effects_json(const Snapshot& s, std::string_view) {
  io::JsonWriter json;
  json.begin_object().field("round", s.summary.round.value()).key("effects").begin_array();
  for (const auto& effect : *s.view<DecisionsView>().effects) put_effect(json, *effect);
  json.end_array().key("scores").begin_array();
  for (const PolicyScore& score : s.view<DecisionsView>().scores) put_score(json, score);
  json.end_array().end_object();
  return json.take();
}

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

Record entry_of(const std::shared_ptr<const DecisionEntry>& shared) {
  const DecisionEntry& entry = *shared;
  const Reason& reason = entry.reason;
  return {{"is_quiet", is_quiet(reason.outcome)},
          {"time", utc_text(entry.last_time)},
          {"rounds", rounds_text(entry)},
          {"policy", policy_name(reason.policy)},
          {"class", outcome_class(reason.outcome)},
          {"text", to_string(reason.outcome)},
          {"why", reason.text},
          {"times", entry.count > 1 ? grouped(entry.count) : ""}};
}

// Returns "-21.2 % (-24.0 % to -18.6 %)"; empty if a step was not measured both before and after.
std::string measured_text(const Effect& effect) {
  const double before = effect.before.step_seconds;
  const double after = effect.after.step_seconds;
  if (before <= 0 || after <= 0) return {};
  const RatioInterval& measured = effect.measured;
  return measured.is_known() ? change_text(measured.ratio, measured.low, measured.high)
                             : change_text(after / before);
}

Record score_row(const PolicyScore& score) {
  return {{"policy", policy_name(score.policy)},
          {"helped", grouped(score.helped)},
          {"did_not_help", grouped(score.did_not_help)},
          {"not_sure", grouped(score.not_sure)},
          {"taken_back", grouped(score.taken_back)},
          {"gained", gain_text(score.seconds_gained)},
          {"lost", gain_text(score.seconds_lost)},
          {"promised", gain_text(score.seconds_promised)}};
}

Record effect_row(const std::shared_ptr<const Effect>& shared) {
  const Effect& effect = *shared;
  const Forecast& f = effect.reason.forecast;
  const std::string promised =
      f.step_ratio > 0 ? change_text(f.step_ratio, f.step_ratio_low, f.step_ratio_high) : "";
  const auto bytes = [](auto count) {
    return count > 0 ? bytes_text(static_cast<std::uint64_t>(count)) : "";
  };
  const auto seconds = [](double time) { return time > 0 ? seconds_text(time) : ""; };
  return {{"failed", effect.verdict == Verdict::did_not_help},
          {"step", grouped(effect.step.value())},
          {"policy", policy_name(effect.reason.policy)},
          {"change", effect.reason.text},
          {"sharing", effect.sharing > 1 ? std::to_string(effect.sharing - 1) : ""},
          {"promised_step", promised},
          {"promised_peak", bytes(f.peak_bytes)},
          {"is_planned", effect.plan.has_value()},
          {"is_unmeasured", effect.after.rounds == 0},
          {"before", seconds(effect.before.step_seconds)},
          {"after", seconds(effect.after.step_seconds)},
          {"measured", measured_text(effect)},
          {"verdict", verdict_text(effect)},
          {"saved", effect.seconds_saved != 0 ? gain_text(std::abs(effect.seconds_saved)) : ""},
          {"is_gain", effect.seconds_saved > 0},
          {"peak_before", bytes(effect.before.peak_bytes)},
          {"peak_after", bytes(effect.after.peak_bytes)}};
}

Record effects_section(const Snapshot& s) {
  const DecisionsView& view = s.view<DecisionsView>();
  if (view.effects->empty()) return {};
  return {{"rounds_before", Effects::kRoundsBefore},
          {"rounds_after", Effects::kRoundsAfter},
          {"effects", newest_of(*view.effects, effect_row, kEffectsShown)},
          {"scores", with_rows(list_of(view.scores, score_row))}};
}

Record decisions_section(const Snapshot& s) {
  const DecisionList& list = *s.view<DecisionsView>().list;
  return {{"entries", with_rows(newest_of(list, entry_of, kShown), list.size())}};
}

}  // namespace

void DecisionsView::add(const Round& round) {
  const StepRecord& record = round.record;
  decide_seconds.observe(record.counters.decide_seconds);
  for (const Reason& reason : record.decision.reasons) {
    const auto policy = static_cast<std::size_t>(reason.policy);
    const auto outcome = static_cast<std::size_t>(reason.outcome);
    ++counts[std::min(policy, kKinds - 1)][std::min(outcome, kOutcomes - 1)];
    count_code(codes, reason.code);
  }
  if (!record.decision.reasons.empty()) list = extended(*list, record, kKept);
  if (record.decision.effects != nullptr) effects = record.decision.effects;
  scores = record.decision.scores;
}

std::shared_ptr<const DecisionList> extended(const DecisionList& list, const StepRecord& record,
                                             std::size_t capacity) {
  auto out = std::make_shared<DecisionList>(list);
  for (const Reason& reason : record.decision.reasons) {
    const RoundId round = record.signals.round;
    DecisionEntry entry{reason, round, round, record.signals.now, 1, record.plan.id.number};
    const auto same = repeated(*out, reason, round);
    if (same != out->end()) {
      entry.first_round = (*same)->first_round;
      entry.count = (*same)->count + 1;
      out->erase(same);
    }
    out->push_back(std::make_shared<const DecisionEntry>(std::move(entry)));
  }
  if (out->size() > capacity)
    out->erase(out->begin(), out->end() - static_cast<std::ptrdiff_t>(capacity));
  return out;
}

Topic decisions_topic() {
  return {.title = "Decisions",
          .follow = grow<DecisionsView>,
          .metrics = metrics,
          .documents = {{"/api/v1/decisions",
                         "what was decided and why, newest first: ?since=ROUND", decisions_json},
                        {"/api/v1/effects",
                         "what each change came to, predicted and measured, oldest first",
                         effects_json}},
          .sections = {
              {"effects.html", effects_section},
              {"decisions.html", decisions_section, Section::Width::full, Section::Shown::always}}};
}

}  // namespace cox::metrics
