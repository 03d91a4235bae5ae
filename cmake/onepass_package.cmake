# cpack: the Debian packages of a shared build, which ./dev package deb makes and tries.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The onepass developers <onepass@localhost>")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENTS_ALL runtime development tool)

# component COMPONENT PACKAGE SECTION DESCRIPTION [DEPENDS]
function(component component package section description)
  string(TOUPPER ${component} name)
  foreach(variable PACKAGE_NAME=${package} PACKAGE_SECTION=${section} "PACKAGE_DEPENDS=${ARGN}")
    string(REGEX MATCH "^([A-Z_]+)=(.*)$" matched "${variable}")
    set(CPACK_DEBIAN_${name}_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" PARENT_SCOPE)
  endforeach()
  set(CPACK_COMPONENT_${name}_DESCRIPTION "${description}" PARENT_SCOPE)
  install(FILES LICENSE DESTINATION share/doc/${package} RENAME copyright COMPONENT ${component})
endfunction()

set(library libonepass${onepass_soversion})
component(runtime ${library} libs "exact attention in one pass: the shared library")
component(development libonepass-dev libdevel "exact attention in one pass: headers for C and C++"
          "${library} (= ${PROJECT_VERSION})")
component(tool onepass science "exact attention in one pass: the command-line tool")
include(CPack)
