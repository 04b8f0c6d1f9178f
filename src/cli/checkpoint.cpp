// weft checkpoint inspect | verify
#include <array>
#include <string>
#include <vector>

#include "checkpoint/reader.hpp"
#include "cli/commands.hpp"
#include "core/check.hpp"
#include "core/log.hpp"

namespace weft {
namespace {

constexpr const char* kFolderHelp = "an iteration's folder, or the save folder: its latest iteration";

int inspect(Args args) {
  std::string folder;
  bool all = false;
  OptionSet options(
      "weft checkpoint inspect",
      "What a checkpoint holds, as name=value lines, then its global tensors: kind, name, dtype, shape "
      "and the number of pieces. Shards are not read.");
  options.topic("options");
  options.argument("DIR", folder, kFolderHelp);
  options.flag("states", all, "list the optimizer's tensors too");
  if (answered(options, args)) return 0;
  const CheckpointInfo info = read_checkpoint_info(folder);
  std::uint64_t bytes = 0;
  for (const CheckpointFile& file : info.files) bytes += file.bytes;
  std::int64_t parameters = 0, tensors = 0;
  std::string list;
  for (const CheckpointTensor& tensor : info.tensors) {
    const bool weight = tensor.kind == kWeightKind;
    if (weight) {
      ++tensors;
      parameters += tensor.shape.elems();
    }
    if (!weight && !all) continue;
    list += fmt::format("{} {} {} {} pieces={}\n", tensor.kind, tensor.name, name_of(tensor.dtype),
                        to_string(tensor.shape), tensor.pieces.size());
  }
  std::string states;
  for (const std::string& state : info.states) states += (states.empty() ? "" : " ") + state;
  print(fmt::format(
      "folder={}\niteration={}\noptimizer_steps={}\noptimizer_state={}\nlayout={}\nmodel={}\ntrainer={}\n"
      "parameters={}\ntensors={}\nfiles={}\nbytes={}\n",
      info.folder.string(), info.iteration, info.optimizer_steps, states.empty() ? "none" : states,
      info.layout, info.model, info.trainer, parameters, tensors, info.files.size(), bytes));
  print(list);
  return 0;
}

int verify(Args args) {
  std::string folder;
  OptionSet options(
      "weft checkpoint verify",
      "Reads every byte of a checkpoint and holds it against the checksums in its index. Exit status 2 "
      "when something is missing or damaged: one line for each file.");
  options.topic("options");
  options.argument("DIR", folder, kFolderHelp);
  if (answered(options, args)) return 0;
  const CheckpointReader reader(folder);
  if (std::vector<std::string> problems = reader.verify(); !problems.empty()) {
    throw ConfigError(std::move(problems));
  }
  std::uint64_t bytes = 0;
  for (const CheckpointFile& file : reader.info().files) bytes += file.bytes;
  print(fmt::format("{}: sound: {} files, {} bytes\n", reader.description(), reader.info().files.size(),
                    bytes));
  return 0;
}

}  // namespace

int run_checkpoint(Args args) {
  constexpr std::array kParts = {Command{"inspect", "what a checkpoint holds", inspect},
                                 Command{"verify", "whether every byte of it is sound", verify}};
  return run_one_of("weft checkpoint", "Looks into checkpoints.", kParts, args);
}

}  // namespace weft
