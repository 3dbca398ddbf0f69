// What `cox analyze`, `cox report` and `cox diff` say, as JSON with the keys of the published
// figures, as panels for a terminal of any width, and as a page. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/diagnosis/figures.h"
#include "coordinator/diagnosis/finding.h"
#include "coordinator/diagnosis/own_rules.h"
#include "coordinator/diagnosis/run_diff.h"
#include "coordinator/diagnosis/run_view.h"
#include "coordinator/tools/plan_history.h"

namespace cox::tools {

enum class RuleSet : std::uint8_t { coxswain, pytscope };

struct Analysis {
  RuleSet rules = RuleSet::coxswain;
  const diagnosis::RunRecord* run = nullptr;
  diagnosis::Figures figures;
  diagnosis::RunView view;  // of rules coxswain, like the next two
  diagnosis::Budget budget;
  std::string flops_source;  // where its FLOPs and peak come from; empty = unknown
  std::vector<diagnosis::Finding> findings;
};

struct Terminal {
  enum class Colour : std::uint8_t { none, ansi };
  std::size_t columns = 80;
  Colour colour = Colour::none;
};

std::string analysis_json(const Analysis& analysis);
std::string analysis_text(const Analysis& analysis, const Terminal& terminal);

// One HTML document that asks for nothing from elsewhere, at most some 4 MB. It reads without
// JavaScript; its script, the only one that it lets run, adds zoom.
std::string analysis_page(const Analysis& analysis, const PlanHistory& history);

std::string diff_json(const diagnosis::RunDiff& diff, RuleSet rules, const std::string& a,
                      const std::string& b);
std::string diff_text(const diagnosis::RunDiff& diff, RuleSet rules, const Terminal& terminal);

}  // namespace cox::tools
