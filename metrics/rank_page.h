// The page of one rank, for readers of the status page who want to know more about it: its figures,
// its phases, its work in the last rounds, and what was decided about it. Pure.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/core/status.h"
#include "metrics/request.h"

namespace cox::metrics {

// `query`: "rank=3"; rank 0 where it names none. invalid_argument when it is no rank of the job.
Result<std::string> rank_page(const Served& served, std::string_view query);

}  // namespace cox::metrics
