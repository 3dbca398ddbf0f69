#include "tests/bench/orders.h"

#include <time.h>

#include <fstream>
#include <sstream>

namespace cox::bench {

void take_turns(const std::string& pipe, const std::function<std::string(int steps)>& turn) {
  std::ifstream orders(pipe + ".in");
  std::ofstream answers(pipe + ".out");
  answers << "{}" << std::endl;
  for (std::string line; std::getline(orders, line);) {
    std::istringstream words(line);
    std::string order;
    std::string variant;
    int steps = 0;
    words >> order >> variant >> steps;
    if (order != "turn" || steps < 1) return;
    answers << turn(steps) << std::endl;
  }
}

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace cox::bench
