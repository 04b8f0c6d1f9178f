#include "cli/command.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <thread>

#include "cli/commands.hpp"
#include "comm/mpi/mpi_launcher.hpp"
#include "core/check.hpp"
#include "train/nearest.hpp"

namespace weft {
namespace {

// A new subcommand: its function in commands.hpp, its file beside this one, its line here.
constexpr std::array kCommands = {
    Command{"train", "train a model, from scratch or from a checkpoint", run_train},
    Command{"score", "loss, logits and gradients of given tokens", run_score_command},
    Command{"generate", "continue prompts, token by token", run_generate_command},
    Command{"convert", "between Hugging Face folders and checkpoints", run_convert_command},
    Command{"tokenizer", "train a byte-level BPE tokenizer; encode and decode text", run_tokenizer},
    Command{"data", "make, inspect and sample token files (.bin/.idx)", run_data},
    Command{"checkpoint", "what a checkpoint holds, and whether every byte is sound", run_checkpoint},
    Command{"bench", "time a training step", run_bench},
    Command{"plan", "memory, messages and bubble of a training run, without running it", run_plan},
    Command{"schedule", "the program, bubble and memory of a pipeline schedule", run_schedule},
    Command{"doctor", "what this build and machine offer, and what is missing for what", run_doctor},
};

constexpr const char* kSummary =
    "Trains GPT-family models at scale in one native program.\n"
    "Exit status: 0 done, 1 failed while running, 2 usage, configuration or unreadable input.";

// Every line of a problem begins with who has it; control characters that came from the input are not sent
// on.
void report(const std::string& who, std::string_view problem) {
  std::string text;
  for (std::size_t begin = 0; begin <= problem.size();) {
    const std::size_t end = std::min(problem.find('\n', begin), problem.size());
    std::string line(problem.substr(begin, end - begin));
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    text += fmt::format("{}: {}\n", who, line);
    begin = end + 1;
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    fail("standard output: write failed: {}", std::strerror(errno));
  }
}

void flush_output() {
  if (std::fflush(stdout) != 0) fail("standard output: write failed: {}", std::strerror(errno));
}

namespace {

// The number of this process among those that a launcher started; −1: none says.
int number_in_launch() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name); rank != nullptr) return std::atoi(rank);
  }
  return -1;
}

}  // namespace

bool answered(const OptionSet& options, OptionSet::Request request) {
  // The same in every process of a launch: one says it.
  if (number_in_launch() <= 0 && request == OptionSet::Request::kHelp) print(options.help());
  if (number_in_launch() <= 0 && request == OptionSet::Request::kPrintConfig) print(options.to_toml());
  return request != OptionSet::Request::kRun;
}

bool answered(OptionSet& options, Args args) {
  return answered(options, options.parse(args));
}

int run_one_of(const std::string& program, const std::string& summary, std::span<const Command> commands,
               Args args) {
  const auto usage = [&] {
    std::string text = fmt::format("Usage: {} COMMAND [options]\n{}\n\n", program, summary);
    for (const Command& command : commands)
      text += fmt::format("  {:<12}{}\n", command.name, command.summary);
    return text + fmt::format("\n{} COMMAND --help shows the options of a command.\n", program);
  };
  if (!args.empty() && (args.front() == "--help" || args.front() == "-h" || args.front() == "help")) {
    print(usage());
    return 0;
  }
  std::vector<std::string> names;
  std::string all;
  for (const Command& command : commands) {
    if (!args.empty() && args.front() == command.name) return command.run(args.subspan(1));
    names.emplace_back(command.name);
    all += (all.empty() ? "" : ", ") + names.back();
  }
  if (args.empty()) config_fail("a command is needed: {} ({} --help says more)", all, program);
  config_fail("unknown command '{}'{} (there are: {})", args.front(),
              did_you_mean(nearest_name(args.front(), names)), all);
}

namespace {

// Options that are wrong are wrong in every process of a launch. The first one says so and its launcher ends
// the others; where only another process sees something wrong, that one speaks after a while.
void let_the_first_process_speak() {
  if (number_in_launch() > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace

int run_command_line(Args args) {
  if (!args.empty() && (args.front() == "--version" || args.front() == "version")) {
    print("weft " WEFT_VERSION "\n");
    return 0;
  }
  const bool known = !args.empty() && std::any_of(kCommands.begin(), kCommands.end(),
                                                  [&](const Command& c) { return args.front() == c.name; });
  const std::string who = known ? "weft " + args.front() : "weft";
  try {
    const int status = run_one_of("weft", kSummary, kCommands, args);
    flush_output();
    leave_mpi();
    return status;
  } catch (const ConfigError& e) {
    let_the_first_process_speak();
    for (const std::string& problem : e.problems) report(who, problem);
    return 2;
  } catch (const Aborted&) {
    return 1;  // the rank that failed first has said why
  } catch (const std::bad_alloc&) {
    report(who, "out of memory");
    return 1;
  } catch (const std::exception& e) {
    report(who, e.what());
    return 1;
  }
}

}  // namespace weft
