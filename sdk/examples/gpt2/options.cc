#include "sdk/examples/gpt2/options.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <string_view>

namespace gpt2 {
namespace {

using cox::Status;

struct Flag {
  std::string name;
  std::string value;  // how the value is called in the usage; empty = none
  std::string help;
  std::function<Status(const std::string&)> set;
};

Status wrong(const std::string& name, const std::string& expected, const std::string& found) {
  return cox::invalid_argument(name + ": expected " + expected + ", found '" + found + "'");
}

template <class T>
std::function<Status(const std::string&)> number(const std::string& name, T& target, T least,
                                                 T most) {
  return [=, &target](const std::string& text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    const bool is_in_range = value >= least && value <= most;  // false for NaN
    if (!is_number || !is_in_range) {
      return wrong(name, "a number from " + std::to_string(least) + " to " + std::to_string(most),
                   text);
    }
    target = value;
    return cox::ok_status();
  };
}

std::function<Status(const std::string&)> text(std::string& target) {
  return [&target](const std::string& value) {
    target = value;
    return cox::ok_status();
  };
}

// Options of this program that are settings of Coxswain under a shorter name.
struct Alias {
  std::string_view option;
  std::string_view setting;
  std::string_view value;  // empty: what follows the option
};
constexpr Alias kAliases[] = {{"--memory-budget", "--cox.memory.budget", ""},
                              {"--precision", "--cox.precision.format", ""},
                              {"--saves", "--cox.checkpoint.directory", ""},
                              {"--resume", "--cox.checkpoint.resume", "on"}};

const Alias* alias_of(std::string_view option) {
  const auto* found = std::find_if(std::begin(kAliases), std::end(kAliases),
                                   [&](const Alias& alias) { return alias.option == option; });
  return found == std::end(kAliases) ? nullptr : found;
}

// Taken out by session_arguments() before options are parsed.
Status taken(const std::string&) {
  return cox::ok_status();
}

std::function<Status(const std::string&)> slowdown(std::vector<Slowdown>& target) {
  return [&target](const std::string& value) {
    auto parsed = parse_slowdown(value);
    if (!parsed.ok()) return parsed.status();
    target.push_back(*parsed);
    return cox::ok_status();
  };
}

std::function<Status(const std::string&)> yes(bool& target) {
  return [&target](const std::string&) {
    target = true;
    return cox::ok_status();
  };
}

template <class T>
Flag counted(const std::string& name, T& target, T least, T most, const std::string& help) {
  return {name, "N", help, number<T>(name, target, least, most)};
}

std::vector<Flag> flags(Options& o) {
  const std::int64_t wide = 1 << 16;
  return {
      {"--text", "FILE", "text to train on, byte by byte", text(o.text)},
      {"--reference", "DIR", "check losses, logits and gradients against a recorded run",
       text(o.reference)},
      {"--load-model", "DIR", "start from config.json and model.safetensors", text(o.load_model)},
      {"--save-model", "DIR", "write both files at the end", text(o.save_model)},
      counted<std::uint64_t>("--steps", o.steps, 1, 1u << 30, "optimizer steps in total"),
      counted<std::int64_t>("--batch", o.batch, 1, wide, "sequences a step over all ranks"),
      counted<std::int64_t>(
          "--micro-batch", o.micro_batch, 0, wide,
          "sequences computed at once, gradients accumulate; 0 = the whole share"),
      counted<std::int64_t>("--length", o.length, 1, wide, "bytes a sequence"),
      counted<std::int64_t>("--layers", o.model.n_layer, 1, 512, "transformer layers"),
      counted<std::int64_t>("--heads", o.model.n_head, 1, 256, "attention heads"),
      counted<std::int64_t>("--width", o.model.n_embd, 1, wide, "width of the model"),
      {"--dropout", "P", "probability, for embeddings, attention and residuals",
       [&o](const std::string& value) {
         Status set = number<double>("--dropout", o.model.embd_pdrop, 0.0, 0.9)(value);
         o.model.attn_pdrop = o.model.resid_pdrop = o.model.embd_pdrop;
         return set;
       }},
      {"--lr", "X", "learning rate after warm-up",
       number<double>("--lr", o.learning_rate, 0.0, 10.0)},
      {"--clip", "X", "largest gradient norm, 0 = no clipping",
       number<double>("--clip", o.clip_norm, 0.0, 1e9)},
      {"--memory-budget", "SIZE", "most memory of a rank, for example 2GiB; is --cox.memory.budget",
       taken},
      {"--precision", "FORMAT", "auto, fp32, bf16, fp16 or fp8; is --cox.precision.format", taken},
      {"--saves", "DIR", "where to save; is --cox.checkpoint.directory", taken},
      {"--resume", "", "go on from the newest save; is --cox.checkpoint.resume=on", taken},
      {"--slow", "R:F[:A-B]",
       "rank R does F times the work, in steps A to B or in all; may be given again",
       slowdown(o.slow)},
      {"--hold", "", "keep the status page up at the end, until SIGTERM", yes(o.hold)},
      {"--help", "", "this text", yes(o.help)},
  };
}

}  // namespace

std::vector<std::string> session_arguments(std::span<const char* const> arguments) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const Alias* alias = alias_of(std::string_view(argument).substr(0, equals));
    const bool has_value = equals < argument.size();
    const bool is_fixed = alias != nullptr && !alias->value.empty();
    if (alias == nullptr || (is_fixed && has_value)) {
      out.push_back(argument);
    } else if (is_fixed) {
      out.push_back(std::string(alias->setting) + "=" + std::string(alias->value));
    } else if (has_value) {
      out.push_back(std::string(alias->setting) + argument.substr(equals));
    } else if (i + 1 < arguments.size()) {
      out.push_back(std::string(alias->setting) + "=" + arguments[++i]);
    } else {
      out.push_back(argument);  // parse_options says what is missing
    }
  }
  return out;
}

cox::Result<Options> parse_options(const std::vector<std::string>& arguments) {
  Options options;
  const std::vector<Flag> known = flags(options);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    const Flag* flag = nullptr;
    for (const Flag& candidate : known) {
      if (candidate.name == name) flag = &candidate;
    }
    if (flag == nullptr) return wrong("gpt2", "one of the options of --help", arguments[i]);
    std::string value = equals == std::string::npos ? "" : arguments[i].substr(equals + 1);
    if (flag->value.empty() && equals != std::string::npos) {
      return wrong(name, "nothing after it", value);
    }
    if (!flag->value.empty() && equals == std::string::npos) {
      if (i + 1 == arguments.size()) return wrong(name, flag->value + " after it", "nothing");
      value = arguments[++i];
    }
    if (Status set = flag->set(value); !set.ok()) return set;
  }
  options.model.n_positions = std::max(options.model.n_positions, options.length);
  return options;
}

std::string usage() {
  Options defaults;
  std::string lines = "usage: gpt2 --text FILE [options] [--cox.KEY=VALUE ...]\n";
  for (const Flag& flag : flags(defaults)) {
    std::string left = "  " + flag.name + (flag.value.empty() ? "" : " " + flag.value);
    left.resize(std::max<std::size_t>(left.size() + 2, 26), ' ');
    lines += left + flag.help + "\n";
  }
  return lines + "  `cox config` lists the --cox keys.\n";
}

}  // namespace gpt2
