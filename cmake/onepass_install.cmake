# cmake --install: the library, its headers, `find_package(onepass)` and `pkg-config onepass`.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Before 1.0 a minor version may change the C++ interface, so the name that programs load has it too.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(onepass_soversion 0.${PROJECT_VERSION_MINOR})
else()
  set(onepass_soversion ${PROJECT_VERSION_MAJOR})
endif()
set_target_properties(onepass PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${onepass_soversion})
if(NOT ONEPASS_INSTALL)
  return()
endif()
install(TARGETS onepass EXPORT onepass_targets
        LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
        ARCHIVE COMPONENT development)
# What the linker of C leaves out, for programs without C++: libstdc++ and libm.
set(cxx_runtime ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_ITEM cxx_runtime ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
list(REMOVE_DUPLICATES cxx_runtime)
if(NOT BUILD_SHARED_LIBS)
  target_link_libraries(onepass INTERFACE "$<INSTALL_INTERFACE:${cxx_runtime}>")
endif()
install(DIRECTORY include/onepass TYPE INCLUDE COMPONENT development)
if(TARGET onepass_cli)
  install(TARGETS onepass_cli COMPONENT tool)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/onepass)
configure_package_config_file(cmake/onepass-config.cmake.in onepass-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(onepass-config-version.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT onepass_targets FILE onepass-targets.cmake NAMESPACE onepass:: DESTINATION ${package_dir}
        COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/onepass-config.cmake ${PROJECT_BINARY_DIR}/onepass-config-version.cmake
        DESTINATION ${package_dir} COMPONENT development)

# A static library's dependencies are linked by whoever uses it; a shared one has found its own, and its users need not
# have their packages.
set(pc_libs "")
if(NOT BUILD_SHARED_LIBS)
  list(TRANSFORM cxx_runtime PREPEND -l OUTPUT_VARIABLE pc_libs)
  list(JOIN pc_libs " " pc_libs)
  string(PREPEND pc_libs "-pthread -ldl ")
  if(ONEPASS_TBB)
    string(PREPEND pc_libs "-ltbb ")
  endif()
endif()
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/onepass.pc.in onepass.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/onepass.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
