// The known name that a mistyped one most likely meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weft {

// How unlike two names of words joined by '-' are, 0 for equal ones: edits of letters (insert, leave out,
// replace, swap), or, where that is less, edits of each word of `typed` to its nearest word of `known` plus a
// little for each word that is left over, so that "tensor-paralel" is near "tensor-model-parallel-size".
double name_distance(std::string_view typed, std::string_view known);

// The nearest of `known`, first wins; empty when none is near.
std::string nearest_name(std::string_view typed, std::span<const std::string> known);

// "; did you mean NAME?", or nothing.
std::string did_you_mean(const std::string& name);

}  // namespace weft
