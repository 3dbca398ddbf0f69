#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <map>
#include <string_view>

#include "coxswain/adamw.h"
#include "coxswain/safetensors.h"

namespace cox {
namespace {

constexpr std::string_view kFirst = "exp_avg.";
constexpr std::string_view kSecond = "exp_avg_sq.";
constexpr std::string_view kStep = "step.";

void add(std::vector<NamedTensor>& out, std::string_view prefix, const std::string& name,
         const at::Tensor& tensor) {
  out.push_back({std::string(prefix) + name, tensor});
}

}  // namespace

std::vector<NamedTensor> AdamW::state() const {
  std::vector<NamedTensor> out;
  for (const Group& group : groups_) {
    for (const Slot& slot : group.slots) {
      if (!slot.exp_avg.defined()) continue;
      add(out, kFirst, slot.name, slot.exp_avg);
      add(out, kSecond, slot.name, slot.exp_avg_sq);
      add(out, kStep, slot.name, slot.step);
    }
  }
  return out;
}

Status AdamW::load_state(std::span<const NamedTensor> state) {
  std::map<std::string_view, const NamedTensor*> given;
  for (const NamedTensor& named : state) given.emplace(named.name, &named);
  const auto holds = [&](std::string_view prefix, const std::string& name) {
    return given.contains(std::string(prefix) + name);
  };
  std::vector<Group> loaded = groups_;
  std::vector<NamedTensor> targets;
  for (Group& group : loaded) {
    for (Slot& slot : group.slots) {
      slot.exp_avg = slot.exp_avg_sq = slot.step = at::Tensor();
      const bool any =
          holds(kFirst, slot.name) || holds(kSecond, slot.name) || holds(kStep, slot.name);
      if (!any) continue;
      start(slot);
      add(targets, kFirst, slot.name, slot.exp_avg);
      add(targets, kSecond, slot.name, slot.exp_avg_sq);
      add(targets, kStep, slot.name, slot.step);
    }
  }
  if (Status status = load_into(targets, state); !status.ok()) {
    return status.with_context("AdamW state");
  }
  groups_ = std::move(loaded);
  return ok_status();
}

}  // namespace cox
