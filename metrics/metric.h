// Metric is one row of the catalogue (metrics/catalogue.h): a metric's name and how to read its
// values from a Snapshot. Each name is written once: the exposition, docs/metrics.md and the tests
// follow from the rows. Topics own the rows. Plain values; reading them is pure.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/summary.h"
#include "metrics/histogram.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

enum class MetricKind { counter, gauge, histogram };
std::string_view to_string(MetricKind kind);

// Label is the name of a label and all its possible values. `values` is empty if they are known at
// run time only.
struct Label {
  std::string name;
  std::vector<std::string> values;
};

// Emit passes on the values of a metric one by one: emit(value, label values in the order of the
// row). Copies nothing; texts must last as long as the call.
class Emit {
 public:
  using Take = std::function<void(std::span<const std::string_view> labels, double value)>;
  explicit Emit(Take take) : take_(std::move(take)) {}

  template <class... Texts>
  void operator()(double value, const Texts&... labels) const {
    const std::array<std::string_view, sizeof...(labels)> views{std::string_view(labels)...};
    take_(views, value);
  }

 private:
  Take take_;
};

// Reader reads the values of a metric. value(), per(), cases(), spread() and open() build it.
struct Reader {
  std::vector<Label> labels;
  std::function<void(const Snapshot&, const Emit&)> read;
};

struct Metric {
  std::string name;  // coxswain_..., unit as suffix
  MetricKind kind = MetricKind::gauge;
  std::string unit;  // "seconds", "bytes", "ratio"; empty for plain counts and ids
  std::string help;  // one sentence, no full stop
  Reader values;     // counters and gauges
  const BucketCounts& (*buckets)(const Snapshot&) = nullptr;  // histograms
  std::string group{};  // title of the topic, set by catalogue()
};

Metric counter(const char* name, std::string help, Reader values, const char* unit = "");
Metric gauge(const char* name, const char* unit, std::string help, Reader values);
// Returns a histogram of seconds. REQUIRES: a default Snapshot has the bounds of its buckets.
Metric histogram(const char* name, std::string help,
                 const BucketCounts& (*buckets)(const Snapshot&));

// Returns `first` followed by `second`, for a topic that lists its rows in two parts.
std::vector<Metric> joined(std::vector<Metric> first, std::vector<Metric> second);

// Reads a metric without labels as get(snapshot).
template <class Get>
Reader value(Get get) {
  return {{}, [get](const Snapshot& s, const Emit& emit) { emit(static_cast<double>(get(s))); }};
}

// Reads a number in a topic's view.
template <class View, class Number>
Reader value(Number View::*member) {
  return value([member](const Snapshot& s) { return s.view<View>().*member; });
}

// Reads one value for each of `names` as get(snapshot, index of the name).
template <class Names, class Get>
Reader per(std::string label, const Names& names, Get get) {
  const std::vector<std::string> values(names.begin(), names.end());
  return {{{std::move(label), values}}, [values, get](const Snapshot& s, const Emit& emit) {
            for (std::size_t i = 0; i < values.size(); ++i)
              emit(static_cast<double>(get(s, i)), values[i]);
          }};
}

// Reads one value for each pair of names as get(snapshot, row, column), columns fastest.
template <class Rows, class Columns, class Get>
Reader per(std::string row_label, const Rows& rows, std::string column_label,
           const Columns& columns, Get get) {
  const Label row{std::move(row_label), {rows.begin(), rows.end()}};
  const Label column{std::move(column_label), {columns.begin(), columns.end()}};
  return {{row, column}, [row, column, get](const Snapshot& s, const Emit& emit) {
            for (std::size_t i = 0; i < row.values.size(); ++i) {
              for (std::size_t k = 0; k < column.values.size(); ++k)
                emit(static_cast<double>(get(s, i, k)), row.values[i], column.values[k]);
            }
          }};
}

// Reads each value of a label in its own way.
struct Case {
  std::string name;
  std::function<double(const Snapshot&)> get;
};
Reader cases(std::string label, std::vector<Case> list);

// Reads the statistics of a spread over the ranks, with the label `stat`.
inline constexpr std::array<std::string_view, 4> kStatNames = {"min", "median", "p95", "max"};
double statistic(const Spread& spread, std::size_t index);  // REQUIRES: index < 4
using SpreadOf = const Spread& (*)(const Snapshot&);
Reader spread(SpreadOf get);
template <class View>
Reader spread(Spread View::*member) {
  return per("stat", kStatNames, [member](const Snapshot& s, std::size_t i) {
    return statistic(s.view<View>().*member, i);
  });
}
// Ends the help of every metric with the label `stat`.
inline const std::string kOverRanks =
    "; stat is taken over the ranks before export, so do not sum over it";

// Builds a reader from any function. REQUIRES: `read` emits one text for each of `labels` with each
// value, a listed one if the label lists any, and no combination of texts twice.
Reader open(std::vector<Label> labels, std::function<void(const Snapshot&, const Emit&)> read);

}  // namespace cox::metrics
