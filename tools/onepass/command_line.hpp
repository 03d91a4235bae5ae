// The whole tool as a function: main.cpp is the program, python/src/command.cpp the command of the Python package.
#pragma once

namespace onepass::cli {

// argv[0] is the tool's name. Returns the exit status. Changes the signal handlers of the process, which ends with it.
int command_line(int argc, char** argv);

}  // namespace onepass::cli
