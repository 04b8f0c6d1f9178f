#include <string>
#include <vector>

#include "cli/command.hpp"

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  return weft::run_command_line(args);
}
