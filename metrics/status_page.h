// The status page: one self-contained HTML document about the job, readable without JavaScript.
// This header has the page's frame: the head, the job's problems, the sections of the topics, the
// footer. The page's size does not grow with the number of ranks. Pure functions; any thread.
//
// The page's script (pages/status.js) listens to the server's events while the job runs, and
// replaces the parts that change. Everything that a reader has opened, scrolled or selected stays.
// Without JavaScript the page reloads every kStatusRefresh. The page of an ended job says so and
// keeps its last values, even after the server has stopped.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/http/event_feed.h"
#include "metrics/request.h"
#include "metrics/topic.h"

namespace cox::metrics {

inline constexpr std::string_view kStatusPath = "/status";
inline constexpr std::string_view kPageEventsPath = "/status/events";
inline constexpr std::string_view kStatusScriptPath = "/status.js";
inline constexpr std::chrono::seconds kStatusRefresh(5);

std::string status_page(const Served& served);

// Returns the same page as events `part`: the id of an element in the first line, the element's
// HTML in the lines after the first.
std::vector<EventPart> page_events(const Served& served);

std::string_view status_script();

// Returns one section of the page; empty if the section has nothing to show.
std::string section_html(const Section& section, const Snapshot& snapshot);

// Returns the page of one rank (rank_page.cc): the rank's figures, phases, work in the last rounds,
// and the decisions about the rank. `query`: "rank=3"; without a rank, rank 0. Returns
// invalid_argument if the rank is not one of the job's.
Result<std::string> rank_page(const Served& served, std::string_view query);

// Returns the page at "/", which lists all pages.
std::string index_page(const Served& served, const std::vector<Endpoint>& endpoints);

}  // namespace cox::metrics
