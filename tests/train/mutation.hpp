// Mutations of communication: a world whose groups do one of their calls wrongly, on every rank alike. A test
// that no longer fails where it should is found by what it lets pass.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "layout_run.hpp"

namespace weft::testing {

// A place in the source that starts a collective: all layers, microbatches and ranks that come by are one
// site.
struct CallSite {
  std::string group;                  // "tp", "pp.activation": groups of one kind are one
  std::string operation;              // "all_reduce", "receive"
  std::vector<std::uintptr_t> stack;  // return addresses, innermost first: the same in every run of a process
  auto operator<=>(const CallSite&) const = default;
};

enum class Mutation {
  kSkip,     // what is there without the call: own part, for parts of others own part again; a message: zeros
  kTwice,    // the sum, summed again over the ranks; a message: doubled
  kAverage,  // divided by the size of the group
  kNeighbour,  // parts of a gather turned by one rank; the next rank's part of a scatter; the message before
  // Another group of the same size, whose members come from different data-parallel (tensor-parallel,
  // context-parallel) ranks. Of messages: the whole channel.
  kShiftDp,
  kShiftTp,
  kShiftCp,
  kDpOnly,  // a sum over data- and context-parallel ranks: of the data-parallel ones alone
  kCount,
};
const char* name_of(Mutation mutation);

struct Mutant {
  CallSite site;
  Mutation mutation;
  auto operator<=>(const Mutant&) const = default;
};
std::string to_string(const Mutant& mutant);
// The functions of a stack, innermost first; "?" for one without a symbol.
std::vector<std::string> functions_of(const CallSite& site);
// Why the run is the same although the call is wrong; empty: it must not be.
std::string equivalent(const Mutant& mutant);

// What makes sense for the operation and the group: no average of a maximum, no other tensor-parallel ranks
// in a group that has all of them.
std::vector<Mutation> mutations_of(const CallSite& site);

// The call sites of a run, gathered from all its ranks.
class SiteLog {
 public:
  void add(const CallSite& site);
  std::set<CallSite> sites() const;

 private:
  mutable std::mutex mutex_;
  std::set<CallSite> sites_;
};

// Hooks for one run_layout() that log call sites of training into `log` (may be null), and where the site of
// `mutant` (may be null) is passed, do the wrong thing and set `happened`. All outlive the run.
RunHooks mutated(const LayoutCase& layout, const Mutant* mutant, SiteLog* log, std::atomic<bool>* happened);

}  // namespace weft::testing
