// Output of `cox whatif`, from the figures of one job: sentences and tables for people, JSON for
// programs, and a page. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "metrics/analysis/whatif/job_model.h"
#include "metrics/analysis/whatif/what_if.h"

namespace cox::tools {

struct WhatIfReport {
  enum class Source : std::uint8_t { trace, run };

  std::string name;  // of the trace or run
  Source source = Source::trace;
  diagnosis::JobModel model;
  diagnosis::WhatIf figures;
};

// Returns the answer in sentences: S first, then the ranks and operations that cost most. A rank is
// named only if removing its delays recovers at least half of the loss.
std::vector<std::string> sentences_of(const WhatIfReport& report);

// Returns places in figures.of_workers, the slowest first.
std::vector<std::size_t> workers_by_cost(const WhatIfReport& report);

std::string ratio_text(double value);                        // "1.234"
std::string share_text(const std::optional<double>& share);  // "12 %"; "-" without a value

// Returns "8 ranks (2 data-parallel x 4 stages), 32 steps".
std::string layout_text(const WhatIfReport& report);

std::string whatif_text(const WhatIfReport& report);
// Returns one object with the keys of the published figures, and Coxswain's own keys beside them
// (docs/what-if.md).
std::string whatif_json(const WhatIfReport& report);
// Returns a whole HTML page that loads no other file and runs no script.
std::string whatif_page(const WhatIfReport& report);

}  // namespace cox::tools
