# SPDX-License-Identifier: Apache-2.0
#
# Compiler and linker flags: tern_flags for what ships, tern_test_flags for tests, tern_common_flags below both.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
	set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Assertions are TN_ASSERT: switched by TERN_DEV_CHECKS, not by NDEBUG.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_C_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")

include(CheckCCompilerFlag)

add_library(tern_common_flags INTERFACE)
target_compile_definitions(tern_common_flags INTERFACE _GNU_SOURCE
	TN_DEV_CHECKS=$<BOOL:${TERN_DEV_CHECKS}> TN_CHECK_DEFAULT=${TERN_CHECK_DEFAULT})
target_compile_options(tern_common_flags INTERFACE
	-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wvla -Wundef
	-Wpointer-arith -Wwrite-strings -Wformat=2 -Wno-format-nonliteral
	-fno-common -fno-omit-frame-pointer -fno-semantic-interposition
	# Symbols are hidden by the version maps (src/*.map), which are the only list of what is exported.
	-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
if(TERN_MUTANTS)
	target_compile_definitions(tern_common_flags INTERFACE TN_MUTANTS=1)
endif()
if(TERN_WERROR)
	target_compile_options(tern_common_flags INTERFACE -Werror)
endif()

# Hardening. Fortify needs optimisation and gets in the way of sanitizers.
target_compile_options(tern_common_flags INTERFACE -fstack-protector-strong)
foreach(flag -fstack-clash-protection -fcf-protection)
	string(MAKE_C_IDENTIFIER "HAVE${flag}" var)
	check_c_compiler_flag(${flag} ${var})
	if(${var})
		target_compile_options(tern_common_flags INTERFACE ${flag})
	endif()
endforeach()
target_link_options(tern_common_flags INTERFACE -Wl,-z,relro,-z,now -Wl,-z,noexecstack)
if(TERN_SANITIZE)
	set(flags -fsanitize=${TERN_SANITIZE})
	if(TERN_SANITIZE MATCHES undefined)
		list(APPEND flags -fno-sanitize-recover=undefined)
	endif()
	# clang says of every loop that is asked to be vectorised that its checks stand in the way.
	target_compile_options(tern_common_flags INTERFACE ${flags} $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed>)
	target_link_options(tern_common_flags INTERFACE ${flags})
	target_compile_definitions(tern_common_flags INTERFACE TN_SANITIZED=1)
else()
	target_compile_options(tern_common_flags INTERFACE
		$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()

add_library(tern_flags INTERFACE)
target_link_libraries(tern_flags INTERFACE tern_common_flags)
target_compile_options(tern_flags INTERFACE -Wconversion -Wno-sign-conversion)
if(CMAKE_C_COMPILER_ID MATCHES Clang)
	target_compile_options(tern_flags INTERFACE -Wno-implicit-int-float-conversion)
endif()

# Calls between files are a tenth of what a small message costs: a release build optimises each library as a
# whole. Objects are fat, so that what links the layers alone (tests, benches) does not wait for that.
option(TERN_LTO "Optimise across files in release builds (gcc)" ON)
set(TERN_LTO_FLAGS "")
if(TERN_LTO AND CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL Release AND NOT TERN_SANITIZE)
	set(TERN_LTO_FLAGS -flto=auto)
	target_compile_options(tern_flags INTERFACE ${TERN_LTO_FLAGS} -ffat-lto-objects)
endif()

# Tests may convert freely: they check values, not types.
add_library(tern_test_flags INTERFACE)
target_link_libraries(tern_test_flags INTERFACE tern_common_flags)
if(TERN_LTO_FLAGS)
	target_link_options(tern_test_flags INTERFACE -fno-lto)
endif()
