# One static library per folder of src/ (weft_core, weft_ops, ...), one test program per folder of tests/.
# Sources are globbed, so adding a file needs no change here.

add_library(weft_flags INTERFACE)
# Of C++ sources alone; nvcc has its own way with each of these.
function(weft_cxx_options)
  foreach(option ${ARGN})
    target_compile_options(weft_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endfunction()
weft_cxx_options(-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-float-conversion
                 -Wno-missing-field-initializers -Wnon-virtual-dtor -Woverloaded-virtual -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees overlap in every "literal" + std::string (its bug 105651).
  weft_cxx_options(-Wno-restrict)
endif()
target_include_directories(weft_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# A portable baseline: AVX2 + FMA. Loops that gain from more choose at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  weft_cxx_options(-march=x86-64-v3)
endif()
# Optimised builds keep IEEE semantics (NaN checks, summation order); errno and traps are not used.
weft_cxx_options(-fno-math-errno -fno-trapping-math -ffp-contract=fast)
if(WEFT_SANITIZE)
  string(REPLACE ";" "," _sanitizers "${WEFT_SANITIZE}")
  target_compile_options(weft_flags INTERFACE -fsanitize=${_sanitizers} -fno-omit-frame-pointer -g1)
  target_link_options(weft_flags INTERFACE -fsanitize=${_sanitizers})
endif()

# weft_library(NAME [DEPS folder...] [LIBS target...]): library of the calling folder.
function(weft_library name)
  cmake_parse_arguments(arg "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/*.cu)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  # cuda/ and nccl/ are for builds with CUDA, but for their absent.cpp, which stand in in the others.
  if(WEFT_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "/(cuda|nccl)/absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "\\.cu$|/(cuda|nccl)/([^a]|a[^b])[^/]*\\.cpp$")
  endif()
  set(scope PUBLIC)
  if(sources)
    add_library(weft_${name} STATIC ${sources})
  else()  # a folder without sources only hands on what it depends on
    set(scope INTERFACE)
    add_library(weft_${name} INTERFACE)
  endif()
  target_link_libraries(weft_${name} ${scope} weft_flags ${arg_LIBS})
  foreach(dep ${arg_DEPS})
    target_link_libraries(weft_${name} ${scope} weft_${dep})
  endforeach()
endfunction()

# weft_tests(FOLDER [DEPS folder...] [LABELS label...]): tests/FOLDER/*.cpp -> weft_FOLDER_tests.
function(weft_tests folder)
  cmake_parse_arguments(arg "" "" "DEPS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(weft_${folder}_tests ${sources})
  target_include_directories(weft_${folder}_tests PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(weft_${folder}_tests PRIVATE
    WEFT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" WEFT_BINARY="${CMAKE_BINARY_DIR}/weft")
  target_link_libraries(weft_${folder}_tests PRIVATE weft_test_support GTest::gtest GTest::gtest_main)
  foreach(dep ${arg_DEPS})
    target_link_libraries(weft_${folder}_tests PRIVATE weft_${dep})
  endforeach()
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  gtest_discover_tests(weft_${folder}_tests PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 300
                       DISCOVERY_TIMEOUT 60)
endfunction()
