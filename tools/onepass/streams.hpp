// The standard streams and the signals, so that neither can take a result away or leave half of one behind.
#pragma once
#include <string_view>

namespace onepass::cli {

// First of all: descriptors 0 to 2 that are closed become such that reading and writing fail, so that no file that is
// opened later becomes what the tool prints into. Then the signals: those that end the tool remove its unfinished files
// first, and a file size limit is an error of writing.
void guard_process();

// To stderr. Text that cannot be written is dropped.
void say(std::string_view line) noexcept;

// Flushes standard output. Throws Error if standard output cannot take it.
void flush_output();

}  // namespace onepass::cli
