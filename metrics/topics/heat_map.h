// The topic HeatMap: own work of the ranks in the last 60 rounds, as ratios to the median of each
// round. Shown beside the rank table. The recording thread writes one small integer per rank and
// round. Snapshots share the columns. The reader's thread picks the ranks to show.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/topic.h"

namespace cox::metrics {

inline constexpr std::size_t kHeatRounds = 60;
inline constexpr std::size_t kHeatRanks = 32;  // on the page

// HeatColumn is one round.
struct HeatColumn {
  static constexpr std::uint16_t kNone = 0;  // the rank has not reported, or had no work

  RoundId round{};
  // Own work of each rank over the median, in hundredths; at least 1 if the work is known.
  std::vector<std::uint16_t> hundredths;

  std::uint16_t of(std::size_t rank) const {
    return rank < hundredths.size() ? hundredths[rank] : kNone;
  }
};

// HeatLevel is one colour of the heat maps on all pages. Levels divide a rank's work over the
// median rank's work: a level holds ratios from `from` up to the next level. Level i has the class
// h<i>.
struct HeatLevel {
  double from;
  const char* text;
};
inline constexpr std::array<HeatLevel, 6> kHeatLevels = {{{0, "below 0.90×"},
                                                          {0.9, "ordinary"},
                                                          {1.1, "from 1.10×"},
                                                          {1.25, "from 1.25×"},
                                                          {1.5, "from 1.50×"},
                                                          {2, "from 2.00×"}}};
inline constexpr std::size_t kOrdinaryHeat = 1;
std::size_t heat_level(double ratio);
// Returns the values of a list that explains the colours.
List heat_keys();

struct HeatMap {
  std::vector<std::shared_ptr<const HeatColumn>> columns;  // oldest first, at most kHeatRounds

  void add(const Round& round);
};

// Returns the ranks to show, ascending, at most kHeatRanks. Larger jobs show the ranks that the
// estimates name, the ranks with the most own work over these rounds, and some of the others,
// evenly spaced.
std::vector<std::size_t> heat_ranks(const Snapshot& snapshot);

// Returns the section of the status page, at most about 30 KB; empty if the map has nothing to
// show.
Record heat_section(const Snapshot& snapshot);

// Returns the document /api/v1/ranks/rounds, with the numbers of the map. ?rank=7 limits the
// document to one rank.
Result<std::string> heat_json(const Snapshot& snapshot, std::string_view query);

Topic heat_topic();

}  // namespace cox::metrics
