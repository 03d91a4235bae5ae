// A workspace has one owner.
#include <onepass/workspace.hpp>

#include <utility>

onepass::WorkspaceMemory own;
#ifdef MISUSE
onepass::WorkspaceMemory other = own;
#else
onepass::WorkspaceMemory other = std::move(own);
#endif
