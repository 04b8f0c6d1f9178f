// Rules that a compiler does not check, held against the text of the sources. Every finding is "file:line:
// what, and the rule", with the file relative to the root that was given.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tree {

using Findings = std::vector<std::string>;

// Which folders each folder may include. Order: from the ground up, as in the file.
struct IncludeRule {
  std::vector<std::string> order;
  std::map<std::string, std::set<std::string>> allowed;
};

// Reads "folder: folder folder ..." lines (# starts a comment). Findings: unreadable lines, rows given twice,
// and rows that name a folder that is not above them.
IncludeRule parse_include_rule(std::string_view text, Findings& findings);

// Every #include "..." under root must name folder/file of an allowed folder, and the file must exist. <...>
// is not looked at, except for libraries that are slow to compile: those stay out of headers.
Findings check_includes(const std::filesystem::path& root, const IncludeRule& rule);

// Every entry of the rule is used by some line, but for "core", which is for everyone: so the table is what
// the tree looks like, and not only what it may become.
Findings check_rule_is_used(const std::filesystem::path& root, const IncludeRule& rule);

// Words that must not stand in code (comments and string literals may say them). `words`: word -> why not.
Findings check_words(const std::filesystem::path& root, const std::map<std::string, std::string>& words);

// No source is longer than `limit` lines.
Findings check_length(const std::filesystem::path& root, int limit);

// `text` with comments, string and character literals blanked out; lines stay where they are.
std::string code_only(std::string_view text);

}  // namespace weft::tree
