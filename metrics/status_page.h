// The status page: one self-contained HTML document about the job, readable without JavaScript.
// Top to bottom: is it training, how fast, where a step goes, which ranks hold it up, what the plan
// is, what was decided and why. Its size does not grow with the number of ranks. Pure.
#pragma once

#include <string>

#include "metrics/routes.h"

namespace cox::metrics {

std::string status_page(const Served& served);

// Its parts, in their order on the page; each returns HTML.
std::string page_header(const Served& served);
std::string page_notes(const Served& served);  // what needs attention; empty on a good day
std::string page_tiles(const Snapshot& snapshot);
std::string page_phases(const StepSummary& summary);
std::string page_ranks(const Snapshot& snapshot);
std::string page_plan(const Snapshot& snapshot);
std::string page_parallel(const Snapshot& snapshot);  // empty where one rank does it all
std::string page_memory(const Snapshot& snapshot);
std::string page_numerics(const Snapshot& snapshot);  // empty where there is nothing to say
std::string page_decisions(const Snapshot& snapshot);
std::string page_control(const Snapshot& snapshot);

}  // namespace cox::metrics
