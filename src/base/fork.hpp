// fork() in a library with threads: a child has only the thread that forked, and the work of the others
// is never finished there. State that threads share keeps the count of forks at which it was made, and compares.
#pragma once

namespace onepass {

// How many forks lie between this process and the program's start: 0, and one more in every child.
int fork_count();

}  // namespace onepass
