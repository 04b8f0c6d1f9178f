#include <csignal>
#include <string>
#include <vector>

#include "cli/command.hpp"

int main(int argc, char** argv) {
  // A file that grows beyond RLIMIT_FSIZE is an error of its write (EFBIG), with a message.
  std::signal(SIGXFSZ, SIG_IGN);
  const std::vector<std::string> args(argv + 1, argv + argc);
  return weft::run_command_line(args);
}
