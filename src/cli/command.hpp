// The frame of the subcommands: one function each, one line in the table of command.cpp.
#pragma once

#include <span>
#include <string>

#include "train/option_set.hpp"

namespace weft {

using Args = OptionSet::Args;

// A subcommand: returns the exit status, or throws. ConfigError becomes exit status 2, any other error 1;
// nothing needs to be caught or reported by the subcommand itself.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(Args args);
};

// Everything after "weft": runs the subcommand and reports its errors, each problem on a line of stderr that
// begins with "weft NAME: ". Returns the exit status: 0 done, 1 failed while running, 2 usage, configuration
// or unreadable input.
int run_command_line(Args args);

// Runs the command that args[0] names, with the rest; with --help or nothing lists them. `program` is how the
// group is called ("weft data").
int run_one_of(const std::string& program, const std::string& summary, std::span<const Command> commands,
               Args args);

// Reads the arguments of a subcommand. True: --help or --print-config was asked for and is answered.
bool answered(OptionSet& options, Args args);
bool answered(const OptionSet& options, OptionSet::Request request);

// Results: written to standard output, an Error when that fails (a full disk behind `>`).
void print(std::string_view text);
void flush_output();

}  // namespace weft
