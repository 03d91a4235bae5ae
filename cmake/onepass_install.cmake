# cmake --install: the library, its headers, `find_package(onepass)` and `pkg-config onepass`.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set_target_properties(onepass PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
install(TARGETS onepass EXPORT onepass_targets)
install(DIRECTORY include/onepass TYPE INCLUDE)
if(TARGET onepass_cli)
  install(TARGETS onepass_cli)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/onepass)
configure_package_config_file(cmake/onepass-config.cmake.in onepass-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(onepass-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT onepass_targets FILE onepass-targets.cmake NAMESPACE onepass:: DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/onepass-config.cmake ${PROJECT_BINARY_DIR}/onepass-config-version.cmake
        DESTINATION ${package_dir})

# A static library's dependencies are linked by whoever uses it; a shared one has found its own.
if(BUILD_SHARED_LIBS)
  set(pc_requires Requires.private)
  set(pc_libs "")
else()
  set(pc_requires Requires)
  set(pc_libs "-pthread -lstdc++ -lm")
endif()
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/onepass.pc.in onepass.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/onepass.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
