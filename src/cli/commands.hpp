// The subcommands, one .cpp file each.
#pragma once

#include "cli/command.hpp"

namespace weft {

int run_train(Args args);
int run_score_command(Args args);
int run_generate_command(Args args);
int run_convert_command(Args args);
int run_tokenizer(Args args);
int run_data(Args args);
int run_checkpoint(Args args);
int run_plan(Args args);
int run_schedule(Args args);
int run_doctor(Args args);
int run_bench(Args args);

}  // namespace weft
