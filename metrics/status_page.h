// The status page: one self-contained HTML document about the job, readable without JavaScript.
// This is its frame: the header, what needs attention, the sections of the topics, the footer. Its
// size does not grow with the number of ranks. Pure.
#pragma once

#include <string>
#include <vector>

#include "metrics/request.h"

namespace cox::metrics {

struct Endpoint;

std::string status_page(const Served& served);

// Returns the page at "/", which lists all pages.
std::string index_page(const Served& served, const std::vector<Endpoint>& endpoints);

}  // namespace cox::metrics
