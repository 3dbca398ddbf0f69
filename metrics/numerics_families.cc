#include "metrics/numerics_families.h"

#include <algorithm>
#include <string_view>

#include "metrics/block_groups.h"

namespace cox::metrics {
namespace {

// The largest known one of a group; nothing where none is known.
template <class Known>
void set_largest(FamilyBuilder& out, std::string_view name, const NumericsView& view,
                 const BlockGroup& group, Known BlockNumerics::*member) {
  const Known* largest = nullptr;
  for (std::size_t b = group.first; b <= group.last; ++b) {
    const Known& known = view.blocks[b].*member;
    if (known.is_known && (largest == nullptr || known.value > largest->value)) largest = &known;
  }
  if (largest != nullptr) out.set(name, {group.label}, largest->value);
}

void set_group(FamilyBuilder& out, const NumericsView& view, const BlockGroup& group) {
  Precision format = Precision::fp32;
  std::array<std::uint64_t, 2> overflows{};
  for (std::size_t b = group.first; b <= group.last; ++b) {
    format = std::max(format, view.blocks[b].format);
    for (std::size_t p = 0; p < overflows.size(); ++p)
      overflows[p] += view.blocks[b].overflow_rounds[p];
  }
  out.set("coxswain_block_precision", {group.label}, static_cast<double>(format));
  for (std::size_t p = 0; p < overflows.size(); ++p)
    out.set("coxswain_overflows_total", {group.label, kPassNames[p]},
            static_cast<double>(overflows[p]));
  using B = BlockNumerics;
  set_largest(out, "coxswain_block_gradient_noise_ratio", view, group, &B::noise);
  set_largest(out, "coxswain_block_underflow_ratio", view, group, &B::underflow);
  set_largest(out, "coxswain_block_saturated_ratio", view, group, &B::saturated);
  set_largest(out, "coxswain_block_activation_magnitude", view, group, &B::activation);
  set_largest(out, "coxswain_block_gradient_magnitude", view, group, &B::gradient);
  set_largest(out, "coxswain_block_curvature", view, group, &B::curvature);
}

void set_changes(FamilyBuilder& out, const FormatChanges& changes) {
  for (std::size_t from = 0; from < kPrecisions; ++from) {
    for (std::size_t to = 0; to < kPrecisions; ++to)
      out.set("coxswain_precision_changes_total", {kPrecisionNames[from], kPrecisionNames[to]},
              static_cast<double>(changes[from][to]));
  }
}

}  // namespace

void set_numerics(FamilyBuilder& out, const Snapshot& s) {
  const NumericsView& view = *s.numerics;
  const Overflow* last = view.last_overflow();
  out.set("coxswain_loss_scale", static_cast<double>(view.loss_scale));
  out.set("coxswain_loss_scale_floor", static_cast<double>(s.plan->scaler.min_scale));
  out.set("coxswain_loss_scale_ceiling", static_cast<double>(s.plan->scaler.max_scale));
  out.set("coxswain_overflow_rounds_total", static_cast<double>(view.overflow_rounds));
  out.set("coxswain_last_overflow_timestamp_seconds", last != nullptr ? last->time.seconds : 0);
  for (std::size_t p = 0; p < kPassNames.size(); ++p)
    out.set("coxswain_overflows_total", {"outside", kPassNames[p]},
            static_cast<double>(view.outside_rounds[p]));
  set_changes(out, view.changes);
  for (const BlockGroup& group : block_groups(*s.job)) {
    if (group.last < view.blocks.size()) set_group(out, view, group);
  }
}

}  // namespace cox::metrics
