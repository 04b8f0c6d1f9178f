#include "source_rules.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <regex>
#include <sstream>

namespace weft::tree {
namespace {

namespace fs = std::filesystem;

// json, CLI11, toml++ and spdlog take seconds each; a header would hand that on to everyone.
constexpr std::array<std::string_view, 4> kSlowLibraries = {"nlohmann/", "CLI/", "toml++/", "spdlog/"};

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

bool is_header(const fs::path& file) {
  return file.extension() == ".hpp" || file.extension() == ".cuh";
}

// Every source under root, relative to it, in a fixed order.
std::vector<fs::path> sources(const fs::path& root) {
  static const std::set<std::string> kinds = {".cpp", ".hpp", ".cu", ".cuh"};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.is_regular_file() && kinds.count(entry.path().extension().string()) > 0) {
      files.push_back(entry.path().lexically_relative(root));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string at(const fs::path& file, int line) {
  return file.generic_string() + ":" + std::to_string(line) + ": ";
}

std::string joined(const std::set<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : " ") + name;
  return text.empty() ? "nothing" : text;
}

// What is wrong with `file` including "`target`"; empty when nothing is.
std::string problem_of(const fs::path& root, const fs::path& file, const std::string& target,
                       const IncludeRule& rule) {
  const std::string from = file.begin()->generic_string();
  const auto slash = target.find('/');
  if (slash == std::string::npos || target.find("..") != std::string::npos) {
    return "include \"" + target + "\" as \"folder/file\"";
  }
  const std::string to = target.substr(0, slash);
  const auto row = rule.allowed.find(from);
  if (row == rule.allowed.end()) return "folder " + from + " has no row in the include rule";
  if (to != from && row->second.count(to) == 0) {
    return from + " must not include \"" + target + "\": " + from + " may include " + joined(row->second);
  }
  if (!fs::is_regular_file(root / target)) return "there is no \"" + target + "\"";
  return "";
}

}  // namespace

IncludeRule parse_include_rule(std::string_view text, Findings& findings) {
  IncludeRule rule;
  std::istringstream in{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = "include rule:" + std::to_string(number) + ": ";
    const auto colon = line.find(':');
    if (colon == std::string::npos) {
      findings.push_back(where + "expected \"folder: folder folder ...\"");
      continue;
    }
    const std::string folder = line.substr(0, colon);
    std::istringstream names(line.substr(colon + 1));
    std::set<std::string> allowed;
    for (std::string name; names >> name;) {
      if (rule.allowed.count(name) == 0)
        findings.push_back(where + folder + " names " + name + ", which has no row above it");
      allowed.insert(name);
    }
    if (!rule.allowed.emplace(folder, allowed).second) findings.push_back(where + folder + " has two rows");
    rule.order.push_back(folder);
  }
  return rule;
}

Findings check_includes(const fs::path& root, const IncludeRule& rule) {
  static const std::regex include(R"(^\s*#\s*include\s*(["<])([^">]+)[">])");
  Findings findings;
  for (const auto& file : sources(root)) {
    std::istringstream in(read(root / file));
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      const std::string target = match[2];
      if (match[1] == "\"") {
        const std::string problem = problem_of(root, file, target, rule);
        if (!problem.empty()) findings.push_back(at(file, number) + problem);
      } else if (is_header(file)) {
        for (const auto library : kSlowLibraries) {
          if (target.rfind(library, 0) == 0) {
            findings.push_back(at(file, number) + "<" + target + "> is slow to compile: only in .cpp files");
          }
        }
      }
    }
  }
  return findings;
}

Findings check_rule_is_used(const fs::path& root, const IncludeRule& rule) {
  static const std::regex include(R"re(^\s*#\s*include\s*"([^"/]+)/)re");
  std::map<std::string, std::set<std::string>> unused = rule.allowed;
  for (const auto& file : sources(root)) {
    std::istringstream in(read(root / file));
    std::smatch match;
    for (std::string line; std::getline(in, line);) {
      if (std::regex_search(line, match, include)) unused[file.begin()->generic_string()].erase(match[1]);
    }
  }
  Findings findings;
  for (const auto& folder : rule.order) {
    for (const auto& entry : unused[folder]) {
      if (entry != "core") {
        findings.push_back("include rule: no file of " + folder + " includes one of " + entry +
                           ": take the entry out");
      }
    }
  }
  return findings;
}

Findings check_words(const fs::path& root, const std::map<std::string, std::string>& words) {
  std::map<std::string, std::regex> patterns;
  for (const auto& [word, why] : words) patterns.emplace(word, "\\b" + word + "\\b");
  Findings findings;
  for (const auto& file : sources(root)) {
    std::istringstream in(code_only(read(root / file)));
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      for (const auto& [word, why] : words) {
        if (std::regex_search(line, patterns.at(word))) {
          findings.push_back(at(file, number) + "\"" + word + "\": " + why);
        }
      }
    }
  }
  return findings;
}

Findings check_length(const fs::path& root, int limit) {
  Findings findings;
  for (const auto& file : sources(root)) {
    const std::string text = read(root / file);
    const auto lines =
        std::count(text.begin(), text.end(), '\n') + (text.empty() || text.back() == '\n' ? 0 : 1);
    if (lines > limit) {
      findings.push_back(at(file, limit + 1) + std::to_string(lines) + " lines; a source has at most " +
                         std::to_string(limit));
    }
  }
  return findings;
}

std::string code_only(std::string_view text) {
  std::string code(text);
  const auto blank = [&code](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < std::min(to, code.size()); ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
  };
  const auto after = [&text](std::string_view what, std::size_t from) {
    const auto found = text.find(what, from);
    return found == std::string_view::npos ? text.size() : found + what.size();
  };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    const bool digit_before = i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0;
    if (text.substr(i, 2) == "//") {
      end = std::min(text.find('\n', i), text.size());
      blank(i, end);
    } else if (text.substr(i, 2) == "/*") {
      end = after("*/", i + 2);
      blank(i, end);
    } else if (text.substr(i, 2) == "R\"") {
      const auto open = std::min(text.find('(', i), text.size() - 1);
      end = after(")" + std::string(text.substr(i + 2, open - i - 2)) + "\"", open);
      blank(i, end);
    } else if (text[i] == '"' || (text[i] == '\'' && !digit_before)) {  // 1'000 is no character literal
      while (end < text.size() && text[end] != text[i] && text[end] != '\n')
        end += text[end] == '\\' ? 2U : 1U;
      end = std::min(end + 1, text.size());
      blank(i, end);
    }
    i = end;
  }
  return code;
}

}  // namespace weft::tree
