// The table of plan fields: each field of a plan is described once, by a row. The row determines
// the bytes of masks (wire/plan_codec), the message in journals, the check against the job,
// equality in effect, differences, text, and JSON (metrics/topics/plan.cc). A policy's proposed
// change and the change's take-back (decide/plan_change) follow from the row, too. A new field
// needs a member of Plan and a row. A type that is new to core/state_codec.h also needs an overload
// in wire/plan_codec.cc. A field whose proposed value does not simply replace the old one needs an
// overload in decide/plan_change.cc.
//
// Ids are the numbers of protobuf fields and part of masks: ids ascend and are never used again. 5
// was the cadence of averaging. A mask leaves out a field that has the value of a default Plan, so
// another default is another version of the mask (wire/frame.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/core/state_codec.h"

namespace cox {

// Knob groups the fields that policies change to save time. Effects measures a promise, and takes
// it back, by knob. A field of `other` is never taken back. States store the values: never
// renumber.
enum class Knob : std::uint8_t { precision = 0, actions = 1, shares = 2, batch = 3, other = 4 };
std::string_view to_string(Knob knob);

// PlanFieldRules are the rules of a field that do not follow from its type.
struct PlanFieldRules {
  Knob knob = Knob::other;
  // The names of the knob and of a change in sentences. Empty: the field's name.
  std::string_view knob_name{};
  std::string_view change_name{};
  // The job must have this capability for any value except the default. Null: no capability is
  // needed.
  bool Capabilities::*capability = nullptr;
  // The largest value of a number. 0: every value fits.
  std::uint64_t most = 0;
  // The check against the job beyond `capability` and `most`. Null: every value fits.
  Status (*check)(const Plan& plan, const JobFacts& job) = nullptr;
  // The field's value for people. Null: the number.
  std::string (*text)(const Plan& plan) = nullptr;
  // Appends lines about a change. Null: one line, from both texts, if the values differ.
  void (*diff)(const Plan& before, const Plan& after, std::vector<std::string>& lines) = nullptr;
  // Returns whether the field has the same effect in both plans. Null: if the values are equal.
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
constexpr PlanField<T> plan_field(std::uint8_t id, std::string_view name, T Plan::*member,
                                  const PlanFieldRules& rules) {
  return {id, name, member, rules};
}

// The functions that the rows below name. The REQUIRES are those of validate(), diff(), text() and
// same_effect().
namespace plan_rules {
Status check_precision(const Plan& plan, const JobFacts& job);
Status check_profiles(const Plan& plan, const JobFacts& job);
Status check_rank_profile(const Plan& plan, const JobFacts& job);
Status check_shares(const Plan& plan, const JobFacts& job);
Status check_scaler(const Plan& plan, const JobFacts& job);
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
}  // namespace plan_rules

// Calls `visit` with every field's row, in the order of ids.
template <class Visit>
constexpr void for_each_plan_field(Visit&& visit) {
  using namespace plan_rules;
  visit(plan_field(1, "precision", &Plan::precision,
                   {.knob = Knob::precision,
                    .check = check_precision,
                    .text = precision_text,
                    .diff = diff_precision}));
  visit(plan_field(2, "profiles", &Plan::profiles,
                   {.knob = Knob::actions,
                    .knob_name = "memory actions",
                    .check = check_profiles,
                    .text = profiles_text,
                    .diff = diff_actions,
                    .same = same_actions}));
  // A rank's profile matters only by its actions, which the row of profiles compares.
  visit(plan_field(3, "rank_profile", &Plan::rank_profile,
                   {.knob = Knob::actions,
                    .check = check_rank_profile,
                    .text = rank_profile_text,
                    .diff = [](const Plan&, const Plan&, std::vector<std::string>&) {},
                    .same = same_actions}));
  visit(plan_field(4, "shares", &Plan::shares,
                   {.knob = Knob::shares,
                    .capability = &Capabilities::shares,
                    .check = check_shares,
                    .text = shares_text}));
  visit(plan_field(6, "scaler", &Plan::scaler, {.check = check_scaler, .text = scaler_text}));
  visit(plan_field(7, "hold_until", &Plan::hold_until, {.text = hold_text}));
  visit(plan_field(8, "rollback", &Plan::rollback, {.text = rollback_text}));
  visit(plan_field(9, "step_samples", &Plan::step_samples,
                   {.knob = Knob::batch,
                    .knob_name = "the samples of a step",
                    .change_name = "another number of samples a step",
                    .capability = &Capabilities::accumulation,
                    .most = kMaxStepSamples,
                    .text = step_samples_text}));
}

// Returns whether the job can apply `value` in this field.
template <class T>
bool is_capable(const PlanField<T>& field, const T& value, const Capabilities& capabilities) {
  return field.rules.capability == nullptr || value == T{} || capabilities.*field.rules.capability;
}

// Returns whether the field has the same effect in both plans.
template <class T>
bool is_same(const PlanField<T>& field, const Plan& a, const Plan& b) {
  return field.rules.same != nullptr ? field.rules.same(a, b) : a.*field.member == b.*field.member;
}

// Calls `visit` with the rows of the knob, in the order of ids; with none for Knob::other.
template <class Visit>
void for_each_field_of(Knob knob, const Visit& visit) {
  for_each_plan_field([&](const auto& field) {
    if (knob != Knob::other && field.rules.knob == knob) visit(field);
  });
}

// Fields of these types have one entry a rank, or are empty.
template <class T>
inline constexpr bool kIsPerRank =
    std::is_same_v<T, std::vector<ProfileId>> || std::is_same_v<T, std::vector<std::uint32_t>>;

// Calls `visit` with the rows of the fields that have one entry a rank.
template <class Visit>
void for_each_per_rank_field(const Visit& visit) {
  for_each_plan_field([&]<class T>(const PlanField<T>& field) {
    if constexpr (kIsPerRank<T>) visit(field);
  });
}

constexpr Knob last_knob() {
  Knob last = Knob::other;
  for_each_plan_field([&](const auto& field) { last = std::max(last, field.rules.knob); });
  return last;
}
template <>
inline constexpr Knob kLargestOf<Knob> = last_knob();
template <>
inline constexpr std::string_view kNameOf<Knob> = "Knob";
template <>
inline constexpr Precision kLargestOf<Precision> = Precision::fp8;
template <>
inline constexpr std::string_view kNameOf<Precision> = "Precision";
template <>
inline constexpr MemoryAction kLargestOf<MemoryAction> = kLastAction;
template <>
inline constexpr std::string_view kNameOf<MemoryAction> = "MemoryAction";

// KnobsMessage is the message of the fields with knobs. A row's id is the number of its field.
template <class AnyPlan>
struct KnobsMessage {
  AnyPlan& plan;
  std::string_view name = "KnobValues";

  template <class Visit>
  void for_each(const Visit& visit) {
    for_each_plan_field([&](const auto& row) {
      if (row.rules.knob == Knob::other) return;
      auto each = field(row.id, row.name, plan.*row.member);
      visit(each);
    });
  }
};

// PlanMessage is the message of a plan. A row's id is the number of its field.
template <class AnyPlan>
struct PlanMessage {
  AnyPlan& plan;
  std::string_view name = "Plan";

  template <class Visit>
  void for_each(const Visit& visit) {
    for_each_plan_field([&](const auto& row) {
      auto each = field(row.id, row.name, plan.*row.member);
      visit(each);
    });
    message(name, field(101, "incarnation", plan.id.incarnation),
            field(102, "number", plan.id.number), field(103, "earliest_round", plan.earliest_round),
            field(104, "activated_round", plan.activated_round))
        .for_each(visit);
  }
};

auto list_fields(Is<Plan> auto& plan) {
  return PlanMessage<std::remove_reference_t<decltype(plan)>>{plan};
}

}  // namespace cox
