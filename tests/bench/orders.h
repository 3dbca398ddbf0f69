// The other end of turns.py: a rank that waits for its turn, asleep in read().
#pragma once

#include <functional>
#include <string>

namespace cox::bench {

// Reads "turn VARIANT STEPS" or "quit" from PIPE.in until there is no more, and answers each turn
// with the line of JSON that `turn` returns, in PIPE.out; "{}" first, when this rank is ready.
void take_turns(const std::string& pipe, const std::function<std::string(int steps)>& turn);

// CPU time of this process so far, all threads.
double process_cpu_seconds();

}  // namespace cox::bench
