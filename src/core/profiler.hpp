// Named ranges for profilers that are attached from outside (nsys). Nothing where none is, and nothing in
// builds without CUDA.
#pragma once

namespace weft {

// Ranges of a thread nest.
void profiler_push(const char* name);
void profiler_pop();

}  // namespace weft
