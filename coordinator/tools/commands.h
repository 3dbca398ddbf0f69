// The subcommands of `cox` as functions of what the command line asked for (cox_main.cc). Each
// prints to standard output and returns the exit code: 0 done, 1 a difference was found, 2 bad
// input, with one line on standard error that says what is wrong.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cox::tools {

inline constexpr int kDone = 0;
inline constexpr int kDifferent = 1;
inline constexpr int kBadInput = 2;

enum class Verbosity { summary, every_round };

// Decides a job's rounds again and compares. `flags` are --cox.* settings that differ from the
// recorded ones, as on a command line.
struct ReplayRequest {
  std::string journal;
  std::vector<std::string> flags;
  Verbosity verbosity = Verbosity::summary;
};
int replay_command(const ReplayRequest& request);

// Lists every setting: for people, or as the table of docs/configuration.md.
enum class ListFormat { text, markdown };
int config_command(ListFormat format);

// Says what memory budgets cost: of a saved profile, or of each instance in a file. Sizes as in
// settings: "6GiB". REQUIRES: one of `profile` and `instances` is empty.
struct PlanRequest {
  std::string profile;
  std::string instances;
  std::vector<std::string> budgets;
};
int plan_command(const PlanRequest& request);

// Prints one line "cox: <message>" on standard error; returns kBadInput.
int complain(std::string_view message);

}  // namespace cox::tools
