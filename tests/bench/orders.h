// The rank's end of turns.py: waits for a turn, asleep in read().
#pragma once

#include <functional>
#include <string>

namespace cox::bench {

// Reads "turn VARIANT STEPS" or "quit" from PIPE.in until the end. Answers each turn in PIPE.out
// with the JSON line that `turn` returns. Answers "{}" first, when this rank is ready.
void take_turns(const std::string& pipe, const std::function<std::string(int steps)>& turn);

// Returns the CPU time of this process so far, all threads.
double process_cpu_seconds();

}  // namespace cox::bench
