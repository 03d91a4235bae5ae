// The unfinished files of this process, so that a signal that ends it leaves none behind.
#pragma once
#include <string>

namespace onepass::io {

// Makes FOLDER/NAME.partial-XXXXXXXXXXXXXXXX for FOLDER/NAME, new and open for writing, and keeps it in a table until
// forget(). The X are random: what an earlier process of the same number left (in containers numbers repeat) is not in
// the way, nor is another process that writes the same file. Returns the descriptor, or -1 with errno set.
int open_partial(const std::string& target, std::string& partial);
// Has been renamed or removed.
void forget_partial(const std::string& partial) noexcept;
// Removes all that are in the table. Async-signal-safe.
void remove_partials() noexcept;

}  // namespace onepass::io
