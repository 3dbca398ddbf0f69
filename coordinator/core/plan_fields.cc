#include "coordinator/core/plan_fields.h"

#include <algorithm>
#include <map>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::plan_rules {
namespace {

constexpr std::uint32_t kMaxShare = 1 << 20;

Status wrong_size(std::string_view what, std::size_t expected, std::size_t found) {
  return invalid_argument("plan: expected ", expected, " entries in ", what, ", found ", found);
}

constexpr unsigned last_value(Precision) {
  return 3;
}
constexpr unsigned last_value(MemoryAction) {
  return static_cast<unsigned>(kLastAction);
}

constexpr std::string_view in_words(Precision precision) {
  return to_string(precision);
}

// Checks that there is one knob per block, and that the job is capable of each.
template <class Knob>
Status check_blocks(const std::vector<Knob>& knobs, const JobFacts& job, const std::string& what) {
  if (knobs.size() != job.blocks.size()) return wrong_size(what, job.blocks.size(), knobs.size());
  for (std::size_t b = 0; b < knobs.size(); ++b) {
    const auto value = static_cast<unsigned>(knobs[b]);
    if (value > last_value(knobs[b])) {
      return invalid_argument("plan: ", what, " of block ", b, ": expected 0 to ",
                              last_value(knobs[b]), ", found ", value);
    }
    if (!job.capabilities.can(knobs[b])) {
      return invalid_argument("plan: ", what, " of block ", b, ": ", in_words(knobs[b]),
                              " cannot be applied by this job");
    }
  }
  return ok_status();
}

template <class Knob>
std::string mix_text(const std::vector<Knob>& knobs) {
  std::map<Knob, std::vector<std::size_t>> blocks;
  for (std::size_t b = 0; b < knobs.size(); ++b) blocks[knobs[b]].push_back(b);
  std::string out;
  for (const auto& [knob, members] : blocks) {
    if (!out.empty()) out += "; ";
    out += concat(in_words(knob), " in ", members.size(), " blocks (", ranges_text(members), ")");
  }
  return out.empty() ? "no blocks" : out;
}

// Appends "precision: bf16 -> fp32 in blocks 0-3" for every kind of change.
template <class Knob>
void diff_blocks(const std::vector<Knob>& before, const std::vector<Knob>& after,
                 const std::string& what, std::vector<std::string>& lines) {
  std::map<std::pair<Knob, Knob>, std::vector<std::size_t>> changes;
  for (std::size_t b = 0; b < std::min(before.size(), after.size()); ++b) {
    if (before[b] != after[b]) changes[{before[b], after[b]}].push_back(b);
  }
  for (const auto& [change, blocks] : changes) {
    lines.push_back(concat(what, ": ", in_words(change.first), " -> ", in_words(change.second),
                           " in blocks ", ranges_text(blocks)));
  }
}

std::string ranks_of(const std::vector<std::size_t>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks);
}

}  // namespace

Status check_precision(const Plan& plan, const JobFacts& job) {
  return check_blocks(plan.precision, job, "precision");
}

Status check_profiles(const Plan& plan, const JobFacts& job) {
  if (plan.profiles.empty() || plan.profiles.size() > kMaxProfiles) {
    return invalid_argument("plan: expected 1 to ", kMaxProfiles, " profiles, found ",
                            plan.profiles.size());
  }
  for (std::size_t p = 0; p < plan.profiles.size(); ++p) {
    Status status = check_blocks(plan.profiles[p], job, concat("actions of profile ", p));
    if (!status.ok()) return status;
  }
  return ok_status();
}

Status check_rank_profile(const Plan& plan, const JobFacts& job) {
  if (plan.rank_profile.empty()) return ok_status();
  const std::size_t world = job.ranks();
  if (plan.rank_profile.size() != world) {
    return wrong_size("rank_profile", world, plan.rank_profile.size());
  }
  for (std::size_t r = 0; r < world; ++r) {
    if (plan.rank_profile[r].value() >= plan.profiles.size()) {
      return invalid_argument("plan: rank ", r, " has profile ", plan.rank_profile[r], " of ",
                              plan.profiles.size());
    }
  }
  return ok_status();
}

Status check_shares(const Plan& plan, const JobFacts& job) {
  if (plan.shares.empty()) return ok_status();
  const std::size_t world = job.ranks();
  if (plan.shares.size() != world) return wrong_size("shares", world, plan.shares.size());
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < world; ++r) {
    if (plan.shares[r] > kMaxShare) {
      return invalid_argument("plan: share of rank ", r, ": expected at most ", kMaxShare,
                              ", found ", plan.shares[r]);
    }
    sum += plan.shares[r];
  }
  if (sum == 0) return invalid_argument("plan: shares: expected a rank with work, found none");
  return ok_status();
}

Status check_scaler(const Plan& plan, const JobFacts&) {
  return validate(plan.scaler).with_context("plan");
}

std::string precision_text(const Plan& plan) {
  return mix_text(plan.precision);
}

std::string profiles_text(const Plan& plan) {
  std::string out;
  for (std::size_t p = 0; p < plan.profiles.size(); ++p) {
    const auto members =
        std::ranges::count(plan.rank_profile, ProfileId(static_cast<ProfileId::rep>(p)));
    out += concat(p > 0 ? " | profile " : "profile ", p, " (",
                  plan.rank_profile.empty() ? "all" : std::to_string(members),
                  " ranks): ", mix_text(plan.profiles[p]));
  }
  return out;
}

std::string rank_profile_text(const Plan& plan) {
  if (plan.rank_profile.empty()) return "all ranks have profile 0";
  std::map<ProfileId, std::vector<std::size_t>> members;
  for (std::size_t r = 0; r < plan.rank_profile.size(); ++r) {
    members[plan.rank_profile[r]].push_back(r);
  }
  std::string out;
  for (const auto& [profile, ranks] : members) {
    if (!out.empty()) out += "; ";
    out += concat(ranks_text(ranks, plan.rank_profile.size()), " profile ", profile);
  }
  return out;
}

std::string shares_text(const Plan& plan) {
  constexpr std::size_t kShown = 32;
  if (plan.shares.empty()) return "even";
  std::string out;
  for (std::size_t r = 0; r < std::min(plan.shares.size(), kShown); ++r) {
    out += concat(r > 0 ? " " : "", plan.shares[r]);
  }
  if (plan.shares.size() > kShown) out += concat(" ... (", plan.shares.size(), " ranks)");
  return out;
}

std::string scaler_text(const Plan& plan) {
  const ScalerRules& s = plan.scaler;
  const auto shown = [](float value) { return general(value, 6); };
  return concat("start ", shown(s.initial_scale), ", x", shown(s.growth_factor), " after ",
                s.growth_interval, " clean steps, x", shown(s.backoff_factor),
                " on overflow, within ", shown(s.min_scale), " .. ", shown(s.max_scale),
                ", hysteresis ", s.hysteresis, ", headroom ", s.headroom_bits, " bits");
}

std::string hold_text(const Plan& plan) {
  return concat("until round ", plan.hold_until);
}

std::string rollback_text(const Plan& plan) {
  if (plan.rollback.ticket == 0) return "none";
  return concat("ticket ", plan.rollback.ticket, ", to before round ", plan.rollback.before_round);
}

std::string step_samples_text(const Plan& plan) {
  return plan.step_samples == 0 ? "the job's" : concat(plan.step_samples, " samples");
}

void diff_precision(const Plan& before, const Plan& after, std::vector<std::string>& lines) {
  diff_blocks(before.precision, after.precision, "precision", lines);
}

// Ranks that move between the same two profiles share their lines.
void diff_actions(const Plan& before, const Plan& after, std::vector<std::string>& lines) {
  const std::size_t ranks = std::max(before.rank_profile.size(), after.rank_profile.size());
  if (ranks == 0) {
    return diff_blocks(before.profiles[0], after.profiles[0], "memory of all ranks", lines);
  }
  std::map<std::pair<ProfileId, ProfileId>, std::vector<std::size_t>> moves;
  for (std::size_t r = 0; r < ranks; ++r) {
    const RankId rank(static_cast<std::int32_t>(r));
    moves[{profile_of(before, rank), profile_of(after, rank)}].push_back(r);
  }
  for (const auto& [move, members] : moves) {
    diff_blocks(before.profiles[move.first.value()], after.profiles[move.second.value()],
                concat("memory of ", ranks_of(members)), lines);
  }
}

}  // namespace cox::plan_rules

namespace cox {
namespace {

// Checks the rules of the field, except the job's capability.
template <class T>
Status check(const PlanField<T>& field, const Plan& plan, const JobFacts& job) {
  const PlanFieldRules& rules = field.rules;
  if constexpr (std::is_unsigned_v<T>) {
    const T value = plan.*field.member;
    if (rules.most != 0 && value > rules.most) {
      return invalid_argument("plan: ", field.name, ": expected at most ", rules.most, ", found ",
                              value);
    }
  }
  return rules.check != nullptr ? rules.check(plan, job) : ok_status();
}

template <class T>
std::string text_of(const PlanField<T>& field, const Plan& plan) {
  if constexpr (std::is_unsigned_v<T>) {
    if (field.rules.text == nullptr) return concat(plan.*field.member);
  }
  return field.rules.text(plan);
}

}  // namespace

std::string_view to_string(Knob knob) {
  std::string_view name;
  for_each_field_of(knob, [&](const auto& field) {
    if (!name.empty()) return;
    name = field.rules.knob_name.empty() ? field.name : field.rules.knob_name;
  });
  return name.empty() ? "another knob" : name;
}

bool same_effect(const Plan& a, const Plan& b) {
  bool same = true;
  for_each_plan_field([&](const auto& field) { same = same && is_same(field, a, b); });
  return same;
}

Status validate(const Plan& plan, const JobFacts& job) {
  if (plan.id.incarnation != job.incarnation) {
    return invalid_argument("plan: expected incarnation ", job.incarnation, ", found ",
                            plan.id.incarnation);
  }
  Status status;
  for_each_plan_field([&](const auto& field) {
    if (!status.ok()) return;
    if (!is_capable(field, plan.*field.member, job.capabilities)) {
      status = invalid_argument("plan: ", field.name, " cannot be applied by this job");
    } else {
      status = check(field, plan, job);
    }
  });
  return status;
}

std::vector<std::string> diff(const Plan& before, const Plan& after) {
  std::vector<std::string> lines;
  for_each_plan_field([&](const auto& field) {
    if (field.rules.diff != nullptr) return field.rules.diff(before, after, lines);
    if (before.*field.member == after.*field.member) return;
    lines.push_back(
        concat(field.name, ": ", text_of(field, before), " -> ", text_of(field, after)));
  });
  return lines;
}

std::string text(const Plan& plan) {
  std::string out =
      concat("plan ", plan.id.incarnation, ".", plan.id.number, ", from round ",
             plan.earliest_round, " on, ",
             plan.activated_round ? concat("active since round ", *plan.activated_round)
                                  : "not seen active yet",
             "\n");
  for_each_plan_field(
      [&](const auto& field) { out += concat(field.name, ": ", text_of(field, plan), "\n"); });
  return out;
}

}  // namespace cox
