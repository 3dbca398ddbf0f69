#include "tests/bench/orders.h"

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

}  // namespace cox::bench
