// The status page: one self-contained HTML document about the job, readable without JavaScript.
// This is its frame: the header, what needs attention, the sections of the topics, the footer. Its
// size does not grow with the number of ranks. Pure.
//
// While the job runs the page follows it: its script (status_script.cc) listens to the server's
// events and puts in the parts that change, so that what somebody has opened, scrolled or selected
// stays. Without JavaScript it fetches itself again every kStatusRefresh. The page of a job that
// has ended says so and stays as it is, also when nobody answers any more.
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

// Returns the same page as events `part`: the id of an element in the first line, its HTML in those
// behind it.
std::vector<EventPart> page_events(const Served& served);

std::string_view status_script();

// Returns one section of the page; empty where there is nothing to show.
std::string section_html(const Section& section, const Snapshot& snapshot);

// Returns the page of one rank: its figures, its phases, its work in the last rounds, and what was
// decided about it (rank_page.cc). `query`: "rank=3"; rank 0 where it names none. invalid_argument
// when it is no rank of the job.
Result<std::string> rank_page(const Served& served, std::string_view query);

// Returns the page at "/", which lists all pages.
std::string index_page(const Served& served, const std::vector<Endpoint>& endpoints);

}  // namespace cox::metrics
