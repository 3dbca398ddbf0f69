// The subcommands of `cox`. Each takes the arguments behind its name, prints to standard output,
// says what is wrong in one line on standard error, and returns the exit code: 0 done, 1 a
// difference was found, 2 bad input.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cox::tools {

inline constexpr int kDone = 0;
inline constexpr int kDifferent = 1;
inline constexpr int kBadInput = 2;

using Arguments = std::span<const std::string>;

int replay_command(Arguments arguments);
int config_command(Arguments arguments);
int plan_command(Arguments arguments);

// One line "cox: <message>" on standard error; returns kBadInput.
int complain(std::string_view message);

}  // namespace cox::tools
