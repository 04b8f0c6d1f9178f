// weft convert
#include "train/convert.hpp"

#include "cli/commands.hpp"

namespace weft {

int run_convert_command(Args args) {
  ConvertOptions convert;
  OptionSet options("weft convert",
                    "Converts between Hugging Face folders and checkpoints, tensor by tensor.");
  options.topic("options");
  options.text("from", convert.from, "DIR", "a checkpoint of any layout, or a Hugging Face folder")
      .required();
  options.text("to", convert.to, "DIR", "the folder to write").required();
  options.text("format", convert.format, "hf|weft", "what to write").required();
  options.text("dtype", convert.dtype, "TYPE",
               "of the weights written: fp32, bf16, fp16 or fp64 (default: as they are)");
  if (answered(options, args)) return 0;
  print(run_convert(convert) + "\n");
  return 0;
}

}  // namespace weft
