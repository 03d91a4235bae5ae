// onepass: exact attention from the command line.
#include "tools/onepass/command_line.hpp"

int main(int argc, char** argv) { return onepass::cli::command_line(argc, argv); }
