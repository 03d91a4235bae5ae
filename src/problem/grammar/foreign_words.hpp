// The names of our options in other libraries. Every interface that meets a name it does not know asks this one table.
#pragma once
#include <string>
#include <string_view>

namespace onepass {

enum class Dialect { python, line, command };  // keyword arguments; words of a problem line; options of the tool

// "causal=True of flash-attn is mask='causal_bottom_right'; ...", or "" for a name that the table does not have.
std::string foreign_word(std::string_view name, Dialect dialect);

}  // namespace onepass
