// What fork() asks of a library with threads: a child has only the thread that forked, and what the others were doing
// is never finished there. Whoever has state that threads share keeps the count it was made at, and compares.
#pragma once

namespace onepass {

// How many forks lie between this process and the program's start: 0, and one more in every child.
int fork_count();

}  // namespace onepass
