// The catalogue: every metric that Coxswain exports, in one table. The exposition fills families by
// these names, docs/metrics.md is generated from it, and tests compare dashboards and rules with
// it. Plain values; built once on request, safe to call from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cox::metrics {

enum class MetricKind { counter, gauge, histogram };
std::string_view to_string(MetricKind kind);

// A label and every value it can take. `open` marks values that are known only at run time.
struct LabelInfo {
  std::string name;
  std::vector<std::string> values;
  enum class Set { closed, open } set = Set::closed;
};

struct MetricInfo {
  std::string group;  // heading on the page
  std::string name;   // coxswain_..., unit as suffix
  MetricKind kind = MetricKind::gauge;
  std::string unit;  // "seconds", "bytes", "ratio"; empty for plain counts and ids
  std::string help;  // one sentence, no full stop
  std::vector<LabelInfo> labels;
  std::vector<double> buckets;  // upper bounds, ascending, without +Inf; histograms only
};

// In the order of the page and of the exposition.
const std::vector<MetricInfo>& catalogue();

// The entry of that name, or nullptr.
const MetricInfo* find_metric(std::string_view name);

// Step times: 10 ms .. 100 s in 1-2-5 steps. Control path: 10 us .. 1 s.
const std::vector<double>& step_buckets();
const std::vector<double>& control_buckets();

// The Markdown page docs/metrics.md.
std::string catalogue_page();

}  // namespace cox::metrics
