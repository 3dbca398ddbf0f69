// gather_rows: numbers from every rank, as many as each has, on rank 0. Collective, blocking by
// polling; between steps only. Training thread.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"

namespace cox::detail {

using Row = std::vector<std::int64_t>;

// One row a rank on rank 0, nothing on the others. `what`: what ranks are waited for to do, for the
// message after 10 minutes.
Result<std::vector<Row>> gather_rows(transport::Communicator& ranks, Row mine, const char* what);

}  // namespace cox::detail
