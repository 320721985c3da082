# Every .cu file is built twice: by the host compiler on cudasim, always, into keel_kernels_sim (namespace on_cudasim), and by
# nvcc, where a toolkit is found, into keel_kernels_cuda (on_cuda). One program holds both.
#
# nvcc is called through custom commands and not through CMake's CUDA language: that one asks for a default architecture and
# would compile a plain compute_90 beside compute_90a, which knows no wgmma. libcuda is never linked, so that the program
# starts where there is no driver.

add_subdirectory(cudasim)

# keel_sim_sources(TARGET FILES …): .cu files compiled by the host's compiler, for cudasim.
function(keel_sim_sources target)
  foreach(source ${ARGN})
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    # A register array that is filled and read under the same condition is no mistake; GCC cannot tell.
    set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/${source} PROPERTIES LANGUAGE CXX
      COMPILE_OPTIONS "-x;c++;-Wno-uninitialized;-Wno-maybe-uninitialized"
      INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/kernels/cudasim/include)
  endforeach()
endfunction()

add_library(keel_kernels_sim)
keel_sim_sources(keel_kernels_sim ${KEEL_CUDA_SOURCES} ${KEEL_HOPPER_SOURCES})
target_link_libraries(keel_kernels_sim PUBLIC keel_base keel_cudasim)

set(KEEL_CUDA "auto" CACHE STRING "build the kernels with nvcc: auto (where one is found), on, off")
# Two take a minute or two of one processor; each further one as long again, those from 100 on longer.
set(KEEL_CUDA_ARCHITECTURES "80;90a" CACHE STRING "what GPUs to compile kernels for, such as 80;90a;120, or all that nvcc knows from sm_80 on")
find_program(KEEL_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(KEEL_CUDA STREQUAL "on" AND NOT KEEL_NVCC)
  message(FATAL_ERROR "KEEL_CUDA is on, but no nvcc was found; set KEEL_NVCC to it")
endif()

# keel_nvcc_objects(OUT FILES … [FLAGS …] [ARCHITECTURES …]): the objects of .cu files compiled by nvcc. What ptxas says of registers and shared memory
# stays beside each, as FILE.cu.o.ptxas.
function(keel_nvcc_objects out)
  cmake_parse_arguments(PARSE_ARGV 1 nvcc "" "" "FLAGS;ARCHITECTURES")
  if(NOT nvcc_ARCHITECTURES)
    set(nvcc_ARCHITECTURES ${KEEL_CUDA_ARCHITECTURES})
  endif()
  list(TRANSFORM nvcc_ARCHITECTURES REPLACE "(.+)" "-gencode;arch=compute_\\1,code=sm_\\1")
  set(objects)
  foreach(source ${nvcc_UNPARSED_ARGUMENTS})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${source}.o)
    add_custom_command(OUTPUT ${object} BYPRODUCTS ${object}.ptxas
      COMMAND ${CMAKE_SOURCE_DIR}/kernels/nvcc.sh ${object} ${object}.ptxas ${CMAKE_CXX_COMPILER_LAUNCHER} ${KEEL_NVCC} -std=c++20 -O3 -lineinfo
        -I${CMAKE_SOURCE_DIR} ${nvcc_FLAGS} ${nvcc_ARCHITECTURES}
        --Werror all-warnings -Xptxas -v,-warn-spills,-warn-lmem-usage
        -Xcompiler -Wall,-Wextra,-Wshadow,-Wno-unused-function,-march=${KEEL_ARCH}
        -MD -MF ${object}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} ${CMAKE_SOURCE_DIR}/kernels/nvcc.sh DEPFILE ${object}.d
      COMMENT "Building CUDA object ${source}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

if(KEEL_CUDA STREQUAL "off" OR NOT KEEL_NVCC OR KEEL_SANITIZE)
  return()
endif()
get_filename_component(cuda_root ${KEEL_NVCC} DIRECTORY)
get_filename_component(cuda_root ${cuda_root} DIRECTORY)
set(KEEL_CUDA_ROOT ${cuda_root} PARENT_SCOPE)
execute_process(COMMAND ${KEEL_NVCC} --version OUTPUT_VARIABLE nvcc_says)
string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" nvcc_says "${nvcc_says}")
set(KEEL_CUDA_VERSION "${CMAKE_MATCH_1}" PARENT_SCOPE)
if(KEEL_CUDA_ARCHITECTURES STREQUAL "all")
  execute_process(COMMAND ${KEEL_NVCC} --list-gpu-code OUTPUT_VARIABLE codes)
  string(REGEX MATCHALL "[0-9]+" codes "${codes}")
  list(FILTER codes EXCLUDE REGEX "^(.|[1-7].)$")
  list(TRANSFORM codes REPLACE "^90$" "90a")  # a plain sm_90 knows no wgmma
  set(KEEL_CUDA_ARCHITECTURES ${codes})
  set(KEEL_CUDA_ARCHITECTURES ${codes} PARENT_SCOPE)
endif()
find_library(KEEL_CUDART cudart_static HINTS ${cuda_root}/lib64 ${cuda_root}/lib REQUIRED)
keel_nvcc_objects(objects ${KEEL_CUDA_SOURCES} FLAGS -DKEEL_HOPPER=$<BOOL:${KEEL_HOPPER}>)
if(KEEL_HOPPER)
  keel_nvcc_objects(hopper_objects ${KEEL_HOPPER_SOURCES} ARCHITECTURES 90a)
  list(APPEND objects ${hopper_objects})
endif()
add_library(keel_kernels_cuda STATIC ${objects})
set_target_properties(keel_kernels_cuda PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(keel_kernels_cuda PUBLIC keel_base ${KEEL_CUDART} ${CMAKE_DL_LIBS} rt Threads::Threads)
