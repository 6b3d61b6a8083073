# SPDX-License-Identifier: Apache-2.0
#
# Manual pages: tern.1 is written by hand, a page tern-COMMAND.1 leads to it for each command that it has a section of;
# section 3 is made from the headers by tools/apidocs.py, as is the reference (target `reference`, build/<preset>/docs/api).
find_package(Python3 REQUIRED COMPONENTS Interpreter)
file(STRINGS docs/man/tern.1 title REGEX "^\\.TH ")
string(REGEX REPLACE "^\\.TH TERN 1 ([0-9-]+) .*" "\\1" TERN_DOCS_DATE "${title}")
set(TERN_MAN ${PROJECT_BINARY_DIR}/docs/man)

file(GLOB headers CONFIGURE_DEPENDS include/tern/*.h)
set(apidocs ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tools/apidocs.py ${PROJECT_SOURCE_DIR}/include
	${PROJECT_VERSION} ${TERN_DOCS_DATE})
set(sources ${headers} tools/apidocs.py tools/capi.py tools/csource.py)
add_custom_command(OUTPUT ${TERN_MAN}/made DEPENDS ${sources} COMMAND ${apidocs} --man ${TERN_MAN}/man3
	COMMAND ${CMAKE_COMMAND} -E touch ${TERN_MAN}/made WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
add_custom_target(manpages ALL DEPENDS ${TERN_MAN}/made)
add_custom_target(reference COMMAND ${apidocs} --html ${PROJECT_BINARY_DIR}/docs/api
	WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS docs/man/tern.1)
configure_file(docs/man/tern.1 ${TERN_MAN}/man1/tern.1 COPYONLY)
file(STRINGS docs/man/tern.1 sections REGEX "^\\.SH TERN [A-Z]+$")
foreach(section ${sections})
	string(REGEX REPLACE "^\\.SH TERN " "" command "${section}")
	string(TOLOWER "${command}" command)
	file(CONFIGURE OUTPUT ${TERN_MAN}/man1/tern-${command}.1 CONTENT ".so man1/tern.1\n")
endforeach()
install(DIRECTORY ${TERN_MAN}/man1 ${TERN_MAN}/man3 DESTINATION ${CMAKE_INSTALL_MANDIR})
