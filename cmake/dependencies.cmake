# Everything comes from the system's packages (scripts/install_deps.sh names them); nothing is downloaded here.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
# By path: Debian's dnnl-config.cmake asks for OpenCL, which nothing here uses.
find_path(DNNL_INCLUDE dnnl.h REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE})
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
if(WEFT_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
