# A shared libonepass exports what the public headers mark, and programs can use it: among others, catch what it throws. A
# static build links one of the same objects for this.
set(library onepass)
if(NOT BUILD_SHARED_LIBS)
  set(library onepass_as_shared)
  add_library(${library} SHARED $<TARGET_OBJECTS:onepass_objects>)
  target_include_directories(${library} PUBLIC ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${library} PRIVATE $<$<BOOL:${ONEPASS_TBB}>:TBB::tbb> Threads::Threads ${CMAKE_DL_LIBS})
  onepass_exports(${library})
endif()

find_package(Python COMPONENTS Interpreter REQUIRED)
add_test(NAME consumer.exports
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/exports.py $<TARGET_FILE:${library}> ${PROJECT_SOURCE_DIR}/include)

add_executable(consumer_of_shared project/consumer.cpp)
set_target_properties(consumer_of_shared PROPERTIES CXX_VISIBILITY_PRESET hidden)
target_link_libraries(consumer_of_shared PRIVATE ${library})
add_test(NAME consumer.shared COMMAND consumer_of_shared)
