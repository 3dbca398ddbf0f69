#include "tests/e2e/trainer_options.h"

#include <algorithm>
#include <stdexcept>

namespace e2e {
namespace {

class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}
  bool is_over() const { return next_ == words_.size(); }
  const std::string& word() { return words_.at(next_++); }
  std::int64_t number() { return std::stoll(word()); }
  std::uint64_t count() { return std::stoull(word()); }
  int rank() { return static_cast<int>(number()); }

 private:
  const std::vector<std::string>& words_;
  std::size_t next_ = 0;
};

Injection read_injection(Words& words) {
  Injection read;
  read.step = words.count();
  read.rank = words.rank();
  read.block = words.count();
  read.is_backward = words.word() == "backward";
  read.factor = std::stof(words.word());
  return read;
}

FormatRequest read_request(Words& words) {
  FormatRequest read;
  read.step = words.count();
  read.rank = words.rank();
  read.block = words.word();
  read.what = words.word();
  const auto& names = cox::kPrecisionNames;
  const auto found = std::find(std::begin(names), std::end(names), words.word());
  if (found == std::end(names)) throw std::invalid_argument("--request: not a format");
  read.format = static_cast<cox::Precision>(found - std::begin(names));
  read.rounds = static_cast<std::uint32_t>(words.count());
  return read;
}

void read_option(const std::string& name, Words& words, Options& o) {
  if (name == "--steps") o.steps = words.count();
  if (name == "--size") o.size = words.number();
  if (name == "--samples") o.samples = words.word();
  if (name == "--sleep-ms") o.sleep_ms = static_cast<int>(words.number());
  if (name == "--nan-steps") {
    o.first_nan = words.count();
    o.last_nan = words.count();
  }
  if (name == "--throw-on") o.throw_on = words.rank();
  if (name == "--throw-at") o.throw_at = words.count();
  if (name == "--odd-model-on") o.odd_model_on = words.rank();
  if (name == "--blocks") o.blocks = words.count();
  if (name == "--width") o.width = words.number();
  if (name == "--inject") o.injections.push_back(read_injection(words));
  if (name == "--request") o.requests.push_back(read_request(words));
  if (name == "--device-ms") {
    for (double& ms : o.device_ms) ms = std::stod(words.word());
  }
  if (name == "--slow") {
    o.slow = {words.rank(), std::stod(words.word()), words.count(), words.count()};
  }
  if (name == "--hold") o.hold = true;
}

}  // namespace

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  Words words(arguments);
  while (!words.is_over()) read_option(words.word(), words, options);
  return options;
}

}  // namespace e2e
