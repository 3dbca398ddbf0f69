// The table of plan fields: each field of a plan is described once, here. From its row follow the
// bytes of masks and journals (wire/plan_codec), the check against the job, equality in effect,
// differences and text. A new field needs a member of Plan and a row here; a field of a type that
// core/state_codec.h does not know also needs an overload in wire/plan_codec.cc. The JSON of a plan
// is not made from this table: metrics/topics/plan.cc lists the fields that it shows.
//
// Ids are part of the bytes: they ascend and are never used again. 5 was the cadence of averaging.
// A field that has the value of a default-constructed Plan is left out of the bytes, so another
// default is another version of the mask (wire/frame.h) and of the files that hold plans.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/plan.h"

namespace cox {

// PlanFieldRules are the rules of a field that do not follow from its type.
struct PlanFieldRules {
  // The job must have this capability for any value but the default. Null: no job needs one.
  bool Capabilities::*capability = nullptr;
  // The check against the job beyond the capability. Null: every value fits.
  Status (*check)(const Plan& plan, const JobFacts& job) = nullptr;
  // The field's value for people.
  std::string (*text)(const Plan& plan) = nullptr;
  // Appends lines about a change. Null: one line, from both texts, when the values differ.
  void (*diff)(const Plan& before, const Plan& after, std::vector<std::string>& lines) = nullptr;
  // Returns whether both plans tell the ranks the same here. Null: when the values are equal.
  bool (*same)(const Plan& a, const Plan& b) = nullptr;
};

template <class T>
struct PlanField {
  std::uint8_t id;
  std::string_view name;  // in text and messages
  T Plan::*member;
  PlanFieldRules rules;
};

template <class T>
PlanField<T> plan_field(std::uint8_t id, std::string_view name, T Plan::*member,
                        const PlanFieldRules& rules) {
  return {id, name, member, rules};
}

// The functions that the rows below name. Their REQUIRES are those of validate(), diff(), text()
// and same_effect().
namespace plan_rules {
Status check_precision(const Plan& plan, const JobFacts& job);
Status check_profiles(const Plan& plan, const JobFacts& job);
Status check_rank_profile(const Plan& plan, const JobFacts& job);
Status check_shares(const Plan& plan, const JobFacts& job);
Status check_scaler(const Plan& plan, const JobFacts& job);
Status check_step_samples(const Plan& plan, const JobFacts& job);
std::string precision_text(const Plan& plan);
std::string profiles_text(const Plan& plan);
std::string rank_profile_text(const Plan& plan);
std::string shares_text(const Plan& plan);
std::string scaler_text(const Plan& plan);
std::string hold_text(const Plan& plan);
std::string rollback_text(const Plan& plan);
std::string step_samples_text(const Plan& plan);
void diff_precision(const Plan& before, const Plan& after, std::vector<std::string>& lines);
void diff_actions(const Plan& before, const Plan& after, std::vector<std::string>& lines);
void diff_nothing(const Plan& before, const Plan& after, std::vector<std::string>& lines);
}  // namespace plan_rules

// Calls `visit` with every field's row, in the order of ids.
template <class Visit>
void for_each_plan_field(Visit&& visit) {
  using namespace plan_rules;
  visit(plan_field(1, "precision", &Plan::precision,
                   {.check = check_precision, .text = precision_text, .diff = diff_precision}));
  visit(plan_field(2, "profiles", &Plan::profiles,
                   {.check = check_profiles,
                    .text = profiles_text,
                    .diff = diff_actions,
                    .same = same_actions}));
  // A rank's profile matters only by its actions, which the row of profiles compares.
  visit(plan_field(3, "rank_profile", &Plan::rank_profile,
                   {.check = check_rank_profile,
                    .text = rank_profile_text,
                    .diff = diff_nothing,
                    .same = same_actions}));
  visit(plan_field(
      4, "shares", &Plan::shares,
      {.capability = &Capabilities::shares, .check = check_shares, .text = shares_text}));
  visit(plan_field(6, "scaler", &Plan::scaler, {.check = check_scaler, .text = scaler_text}));
  visit(plan_field(7, "hold_until", &Plan::hold_until, {.text = hold_text}));
  visit(plan_field(8, "rollback", &Plan::rollback, {.text = rollback_text}));
  visit(plan_field(9, "step_samples", &Plan::step_samples,
                   {.capability = &Capabilities::accumulation,
                    .check = check_step_samples,
                    .text = step_samples_text}));
}

// Returns whether the job can apply `value` in this field at all.
template <class T>
bool is_capable(const PlanField<T>& field, const T& value, const Capabilities& capabilities) {
  return field.rules.capability == nullptr || value == T{} || capabilities.*field.rules.capability;
}

}  // namespace cox
