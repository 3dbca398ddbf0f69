#include "coordinator/core/precision_format.h"
#include "metrics/catalogue_group.h"
#include "metrics/overflow_log.h"

namespace cox::metrics {

void add_numerics_metrics(std::vector<MetricInfo>& all) {
  Group g(all, "Numerics");
  const std::string newest = "; the newest known one, absent before the first";
  g.gauge("coxswain_loss_scale", "",
          "What fp16 gradients are multiplied with; 0 where no loss scaler is at work");
  g.gauge("coxswain_loss_scale_floor", "", "Smallest loss scale that the plan allows");
  g.gauge("coxswain_loss_scale_ceiling", "", "Largest loss scale that the plan allows");
  g.counter(
      "coxswain_overflow_rounds_total",
      "Control rounds in which values that are not finite arose in a block or outside of all");
  g.counter(
      "coxswain_overflows_total",
      "Control rounds in which values that are not finite arose in that block and pass; block "
      "outside is outside of all blocks",
      {open_label("block"), label("pass", kPassNames)});
  g.gauge("coxswain_last_overflow_timestamp_seconds", "seconds",
          "Unix time of the newest overflow; 0 before the first");
  g.counter("coxswain_precision_changes_total", "Changes of a block's format that took effect",
            {label("from", kPrecisionNames), label("to", kPrecisionNames)});
  g.gauge("coxswain_block_precision", "",
          "Format that a block computes in: 0 is fp32, 1 bf16, 2 fp16, 3 fp8; the largest of "
          "blocks that share a series",
          {open_label("block")});
  g.gauge("coxswain_block_gradient_noise_ratio", "ratio",
          "Noise of a block's gradients divided by their signal" + newest, {open_label("block")});
  g.gauge("coxswain_block_underflow_ratio", "ratio",
          "Sampled values of a block that its format flushed to zero" + newest,
          {open_label("block")});
  g.gauge("coxswain_block_saturated_ratio", "ratio",
          "Sampled values of a block that its format clipped" + newest, {open_label("block")});
  g.gauge("coxswain_block_activation_magnitude", "",
          "Largest finite result of a block, over the ranks" + newest, {open_label("block")});
  g.gauge("coxswain_block_gradient_magnitude", "",
          "Largest finite gradient at a block's boundary without the loss scale, over the ranks" +
              newest,
          {open_label("block")});
  g.gauge(
      "coxswain_block_curvature", "",
      "Largest eigenvalue of the loss's Hessian for a block's parameters, over the ranks" + newest,
      {open_label("block")});
}

}  // namespace cox::metrics
