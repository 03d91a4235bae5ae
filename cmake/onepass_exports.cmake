# onepass_exports(target): a shared library exports what ONEPASS_API marks and nothing else. Hidden visibility leaves the
# templates of the standard library that it instantiates; the version script hides those too.
set(ONEPASS_EXPORTS_MAP ${CMAKE_CURRENT_LIST_DIR}/onepass.map)
function(onepass_exports target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL SHARED_LIBRARY AND NOT APPLE)
    target_link_options(${target} PRIVATE LINKER:--version-script=${ONEPASS_EXPORTS_MAP})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${ONEPASS_EXPORTS_MAP})
  endif()
endfunction()
