// How much of the communication overlap hides, by wall clock: thread ranks on a pretended link of 100 us and
// 1 GB/s (LinkModel, queued), compute about 1.5 times as long as the communication it is to hide.
//
//   overlap_bench [--quick] [--rounds N] [--threads N] [mechanism] [data] [pipeline] [tensor] [context]
//
// No part named: all of them. --threads: of each rank. Needs a core for every thread of every rank (at most 4
// ranks), and one or two more: the copies of the pretended link are made by threads of its own.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "core/check.hpp"
#include "overlap.hpp"

namespace weft::overlap {

LinkModel link() {
  return {.latency = std::chrono::microseconds(100), .bytes_per_second = 1e9, .queued = true};
}

namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int number(const std::string& option, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw ConfigError({fmt::format("{} '{}' must be a number of at least 1", option, text)});
  }
  return value;
}

void run(const std::vector<std::string>& arguments) {
  Settings settings;
  std::set<std::string> parts;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto value = [&] { return number(argument, ++i < arguments.size() ? arguments[i] : ""); };
    if (argument == "--quick") {
      settings.quick = true;
      settings.rounds = 1;
    } else if (argument == "--rounds") {
      settings.rounds = value();
    } else if (argument == "--threads") {
      settings.threads = value();
    } else if (argument == "mechanism" || argument == "data" || argument == "pipeline" ||
               argument == "tensor" || argument == "context") {
      parts.insert(argument);
    } else {
      throw ConfigError({fmt::format(
          "'{}' is neither an option (--quick, --rounds N, --threads N) nor a part (mechanism, data, "
          "pipeline, tensor, context)",
          argument)});
    }
  }
  const auto wanted = [&](const char* part) { return parts.empty() || parts.contains(part); };
  const auto start = std::chrono::steady_clock::now();
  print_header();
  if (wanted("mechanism")) measure_mechanism(settings);
  if (wanted("data")) measure_data_parallel(settings);
  if (wanted("pipeline")) measure_pipeline(settings);
  if (wanted("tensor")) measure_tensor_parallel(settings);
  if (wanted("context")) measure_context_parallel(settings);
  fmt::print(
      "T_none: without the time of the communication in question. hidden = 1 - (T_on - T_none) / (T_off - "
      "T_none).\n"
      "cmp/comm: what can hide, to what is to be hidden. bound: of hidden, by who waits for whom (first and "
      "last\n"
      "buckets and chunks; for pipelines the simulator, which shows that 1f1b has no room for messages).\n"
      "Medians of {} rounds; {} thread{} a rank; {:.0f} s in all.\n",
      settings.rounds, settings.threads, settings.threads == 1 ? "" : "s",
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

Times take_turns(int rounds, const std::function<double(Form)>& seconds_of) {
  std::vector<double> none, off, on;
  for (int i = 0; i < rounds; ++i) {
    on.push_back(seconds_of(Form::kOn));
    off.push_back(seconds_of(Form::kOff));
    none.push_back(seconds_of(Form::kNone));
  }
  return {median(none), median(off), median(on)};
}

void print_header() {
  fmt::print("{:<44}{:>6}{:>11}{:>11}{:>11}{:>10}{:>9}{:>9}\n", "", "ranks", "T_none ms", "T_off ms",
             "T_on ms", "cmp/comm", "hidden", "bound");
}

void print(const Row& row) {
  fmt::print("{:<44}{:>6}{:>11.2f}{:>11.2f}{:>11.2f}{:>10.2f}{:>9.3f}{:>9.3f}\n", row.what, row.ranks,
             row.times.none * 1e3, row.times.off * 1e3, row.times.on * 1e3, row.compute / row.communication,
             row.times.hidden(), row.bound);
  std::fflush(stdout);
}

}  // namespace weft::overlap

int main(int argc, char** argv) {
  try {
    weft::overlap::run({argv + 1, argv + argc});
  } catch (const weft::ConfigError& e) {
    fmt::print(stderr, "overlap_bench: {}\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "overlap_bench: {}\n", e.what());
    return 1;
  }
}
