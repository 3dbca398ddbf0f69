// The status page: one self-contained HTML document about the job, readable without JavaScript.
// This is its frame: the header, what needs attention, the sections of the topics, the footer. Its
// size does not grow with the number of ranks. Pure.
//
// While the job runs the page fetches itself again every kStatusRefresh; that of a job that has
// ended says so and stays as it is, also when nobody answers any more.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/request.h"

namespace cox::metrics {

struct Endpoint;

inline constexpr std::string_view kStatusPath = "/status";
inline constexpr std::chrono::seconds kStatusRefresh(5);

std::string status_page(const Served& served);

// Returns the page at "/", which lists all pages.
std::string index_page(const Served& served, const std::vector<Endpoint>& endpoints);

}  // namespace cox::metrics
