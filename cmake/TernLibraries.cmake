# SPDX-License-Identifier: Apache-2.0
#
# libtern.so (all layers up to the composition root, without the graph) and libtern-graph.so (graph and
# session), each the whole archives of the layers that exist, with a version map that is the only list of
# exported symbols. libtern-graph uses internals of libtern of the same version: they are in the node
# TERN_PRIVATE of src/tern.map.
set(core_layers)
foreach(layer base mem transport link channel rpc tensor coll cluster store ps runtime)
	if(TARGET tn_${layer})
		list(APPEND core_layers tn_${layer})
	endif()
endforeach()
set(graph_layers)
foreach(layer graph session)
	if(TARGET tn_${layer})
		list(APPEND graph_layers tn_${layer})
	endif()
endforeach()

# tern_shared(target map layers...): links whole archives by file name, so that what the layers themselves
# link (PUBLIC) does not drag archives of other layers in.
function(tern_shared target map)
	add_library(${target} SHARED ${PROJECT_SOURCE_DIR}/cmake/empty.c)
	add_library(tern::${target} ALIAS ${target})
	set(archives)
	foreach(layer ${ARGN})
		list(APPEND archives $<TARGET_FILE:${layer}>)
		add_dependencies(${target} ${layer})
	endforeach()
	target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/${map}
		-Wl,-Bsymbolic -Wl,--no-undefined ${TERN_LTO_FLAGS})
	target_link_libraries(${target} PRIVATE tern_flags
		-Wl,--whole-archive ${archives} -Wl,--no-whole-archive)
	set_target_properties(${target} PROPERTIES SOVERSION ${TERN_SOVERSION}
		VERSION ${TERN_SOVERSION}.${PROJECT_VERSION_MINOR}.${PROJECT_VERSION_PATCH}
		LINK_DEPENDS "${PROJECT_SOURCE_DIR}/src/${map};${archives}")
	target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
		$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
	if(TERN_SANITIZE)
		target_link_options(${target} PRIVATE -Wl,--allow-shlib-undefined -Wl,-z,undefs)
	endif()
endfunction()

tern_shared(tern tern.map ${core_layers})
target_link_libraries(tern PRIVATE Threads::Threads OpenSSL::Crypto PkgConfig::JANSSON ${CMAKE_DL_LIBS} m)
set(installed tern)

if(graph_layers)
	tern_shared(tern-graph tern-graph.map ${graph_layers})
	target_link_libraries(tern-graph PUBLIC tern PRIVATE ${TERN_DNNL} PkgConfig::PROTOBUF_C ${CMAKE_DL_LIBS} m)
	list(APPEND installed tern-graph)
endif()

if(TARGET tn_http)
	tern_shared(tern-http tern-http.map tn_http)
	target_link_libraries(tern-http PUBLIC tern PRIVATE PkgConfig::MICROHTTPD)
	list(APPEND installed tern-http)
endif()

install(TARGETS ${installed} EXPORT tern-targets
	LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/tern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT tern-targets NAMESPACE tern:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tern)

include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/tern-config.cmake.in ${PROJECT_BINARY_DIR}/tern-config.cmake
	INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tern)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tern-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tern-config.cmake ${PROJECT_BINARY_DIR}/tern-config-version.cmake
	DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tern)
foreach(pc ${installed})
	configure_file(cmake/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc @ONLY)
	install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
