# The CUDA backend. AUTO builds it where both the toolkit and a GPU are; ON also for GPUs elsewhere.
set(WEFT_CUDA AUTO CACHE STRING "The CUDA backend: AUTO, ON or OFF")
set(WEFT_CUDA_ARCH 90a CACHE STRING "GPU architectures to build for, as CMAKE_CUDA_ARCHITECTURES takes them")
set(WEFT_GPU_DIR ${CMAKE_SOURCE_DIR}/.gpu CACHE PATH "Where scripts/fetch_gpu.sh has put headers and libraries")
set(WEFT_HAS_CUDA FALSE CACHE INTERNAL "The CUDA backend is built")

set(_wanted ${WEFT_CUDA})
if(_wanted STREQUAL AUTO)
  set(_wanted OFF)
  if(EXISTS /dev/nvidiactl)
    set(_wanted ON)
  endif()
endif()
if(NOT _wanted)
  return()
endif()

include(CheckLanguage)
set(CMAKE_CUDA_ARCHITECTURES ${WEFT_CUDA_ARCH})
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(WEFT_CUDA STREQUAL AUTO)
    message(STATUS "A GPU is here but no nvcc: building for the CPU (README, section GPU, says what to install)")
    return()
  endif()
  message(FATAL_ERROR "WEFT_CUDA=ON, but no nvcc was found; put it on PATH or give -DCMAKE_CUDA_COMPILER=...")
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that this compiler takes C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)

# cuDNN from the system or from .gpu; its C++ frontend is headers alone.
find_path(CUDNN_INCLUDE cudnn.h HINTS ${WEFT_GPU_DIR}/include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${WEFT_GPU_DIR}/lib ${CUDAToolkit_LIBRARY_DIR}
             ${CUDAToolkit_TARGET_DIR}/lib ${CUDAToolkit_ROOT}/lib)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${WEFT_GPU_DIR}/include)
find_path(NCCL_INCLUDE nccl.h HINTS ${WEFT_GPU_DIR}/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${WEFT_GPU_DIR}/lib ${CUDAToolkit_LIBRARY_DIR}
             ${CUDAToolkit_TARGET_DIR}/lib ${CUDAToolkit_ROOT}/lib)
foreach(_needed CUDNN_INCLUDE CUDNN_LIBRARY CUDNN_FRONTEND_INCLUDE NCCL_INCLUDE NCCL_LIBRARY)
  if(NOT ${_needed})
    message(FATAL_ERROR "The CUDA backend needs cuDNN, its C++ frontend and NCCL (${_needed} was not found); "
                        "scripts/fetch_gpu.sh fetches them into ${WEFT_GPU_DIR}")
  endif()
endforeach()

add_library(weft_cuda_libraries INTERFACE)
target_include_directories(weft_cuda_libraries SYSTEM INTERFACE
  ${CUDNN_INCLUDE} ${CUDNN_FRONTEND_INCLUDE} ${NCCL_INCLUDE})
target_link_libraries(weft_cuda_libraries INTERFACE CUDA::cudart_static CUDA::cublasLt ${CUDNN_LIBRARY} ${NCCL_LIBRARY})
target_compile_definitions(weft_flags INTERFACE WEFT_HAS_CUDA)
# fmt believes that nvcc has no constexpr, and nvcc then cannot check format strings.
target_compile_definitions(weft_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
# constexpr functions of the host run on the device; --extended-lambda for kernels that take a function.
target_compile_options(weft_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>)
set(WEFT_HAS_CUDA TRUE CACHE INTERNAL "")
