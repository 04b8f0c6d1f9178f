// The folder that checkpoints are saved in: iterations appear whole, old ones go.
#pragma once

#include <cstdint>
#include <filesystem>

namespace weft {

// The name under which an iteration is written: iter_0000123.tmp.
std::filesystem::path unfinished_folder(const std::filesystem::path& save, std::int64_t iteration);
// Gives a whole unfinished folder its name (replacing an older one of that iteration) and makes it the
// latest. Everything in it has been flushed. Returns the folder.
std::filesystem::path publish_iteration(const std::filesystem::path& save, std::int64_t iteration);
// Deletes all but the newest `keep` of the iterations up to this one. A failure is a warning: the save has
// succeeded.
void delete_older(const std::filesystem::path& save, std::int64_t iteration, std::int64_t keep);

}  // namespace weft
