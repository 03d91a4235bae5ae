// The tables of docs/reference/support.md: the kernel that each call gets on each device, asked of the implementations.
// Calls are all combinations of a table's rows, options and columns. Combinations with equal answers share a line.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/host/pretended.hpp"
#include "cuda/support_calls.hpp"
#include "cuda/support_page.hpp"
#include "cuda/target.hpp"
#include "onepass/error.hpp"
#include "plan/implementations.hpp"
#include "problem/grammar/on.hpp"
#include "problem/implementation.hpp"
#include "reference/reference.hpp"

namespace onepass::cuda {
namespace {

using Labels = std::vector<std::string>;

// Sentences of the implementations that refuse, by their names.
using Reasons = std::vector<std::pair<std::string, Labels>>;
struct Answer {
  std::string runs;  // "sm90", on the CPU "yes"; "no" if there is none
  Reasons reasons;
};

template <class Item, class List>
void add_new(List& list, const Item& item) {
  if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

void add(Reasons& reasons, const std::string& name, const std::string& sentence) {
  auto same = std::ranges::find(reasons, name, &Reasons::value_type::first);
  if (same == reasons.end()) same = reasons.insert(same, {name, {}});
  add_new(same->second, sentence);
}

void add(Reasons& reasons, const Reasons& more) {
  for (const auto& [name, sentences] : more)
    for (const std::string& sentence : sentences) add(reasons, name, sentence);
}

// A family for other head dims, for few rows, for packed q or for another option says nothing about the call. If no
// kernel at all supports it, every sentence counts.
bool tells(const Implementation& row, const Problem& p, const std::string& refusal) {
  if (std::string_view(row.name).find("mla") != std::string_view::npos && p.dim_qk != 576) return false;
  for (const char* other : {"head dims must be ", "rows per K/V head ", "requires packed q over a ",
                            "requires the option fp8", "does not quantize "})
    if (refusal.starts_with(other)) return false;
  return true;
}

Answer answer(const std::string& line, const std::string& arch) try {
  const bool cpu = arch.empty();
  const PretendedDevice pretended(typical_device(cpu ? "sm_80" : arch));
  Problem p = parse_problem_on({cpu ? DeviceKind::cpu : DeviceKind::cuda, 0}, line);
  if (!cpu) p = as_called(p);
  Answer said{"no", {}};
  Reasons others;
  for (const Implementation* row : plan::implementations(p, 1)) {
    const std::string name = row->name;
    if (reference::is_reference(*row) || name.starts_with("cpu.") != cpu) continue;
    const Decision d = decide(*row, p);
    if (d) return {cpu ? "yes" : name.substr(5), std::move(said.reasons)};
    // The device is named by the table: "(NVIDIA A100 has 8.0)" is left out.
    add(tells(*row, p, d.refusal) ? said.reasons : others, text("`", name, "`"),
        d.refusal.substr(0, d.refusal.find(" (NVIDIA")));
  }
  EXPECT_FALSE(cpu) << line << ": no CPU kernel supports a valid problem";
  add(said.reasons, others);
  return said;
} catch (const Error& error) {
  return {"no", {{"", {error.what()}}}};
}

void add(std::vector<Reasons>& reasons, const std::vector<Reasons>& more) {
  for (std::size_t i = 0; i < reasons.size(); ++i) add(reasons[i], more[i]);
}

// The answers of one row on one device, by groups of options that have the same ones.
struct Group {
  Labels options, runs;
  std::vector<Reasons> reasons;  // of each column
};
std::vector<Group> groups(const Matrix& m, const Words& row, const std::string& arch) {
  std::vector<Group> found;
  for (const Words& option : m.options) {
    Group one{{option.label}, {}, {}};
    for (const Words& column : m.columns) {
      Answer said = answer(text(m.call, " ", row.words, " ", column.words, " ", option.words), arch);
      one.runs.push_back(said.runs);
      one.reasons.push_back(said.runs == "no" || said.runs.starts_with("plain") ? said.reasons : Reasons{});
    }
    const auto same = std::ranges::find(found, one.runs, &Group::runs);
    if (same == found.end()) {
      found.push_back(one);
      continue;
    }
    same->options.push_back(option.label);
    add(same->reasons, one.reasons);
  }
  return found;
}

std::string joined(const Labels& labels, const char* between = ", ") {
  std::string all;
  for (const std::string& label : labels) all += text(all.empty() ? "" : between, label);
  return all;
}

// "does not support a bias, dropout": what several sentences begin with is said once.
std::string joined_sentences(const Labels& sentences) {
  const std::string word = "support ";
  const std::size_t at = sentences.front().find(word), size = at == std::string::npos ? 0 : at + word.size();
  const std::string begin = sentences.front().substr(0, size);
  const bool shared = std::ranges::all_of(sentences, [&](const std::string& s) { return s.starts_with(begin); });
  if (size == 0 || !shared) return joined(sentences, "; or ");
  Labels ends;
  for (const std::string& s : sentences) ends.push_back(s.substr(size));
  return begin + joined(ends);
}

// Names that have the same sentences are named together.
std::string told(const Reasons& reasons) {
  Reasons by_sentences;
  for (const auto& [name, sentences] : reasons) {
    const auto same = std::ranges::find(by_sentences, sentences, &Reasons::value_type::second);
    if (same == by_sentences.end())
      by_sentences.emplace_back(name, sentences);
    else
      same->first += ", " + name;
  }
  Labels parts;
  for (const auto& [names, sentences] : by_sentences)
    parts.push_back(text(names, names.empty() ? "" : ": ", joined_sentences(sentences)));
  return joined(parts, ". ");
}

std::string devices_text(const Labels& devices) {
  Labels others;
  for (const Words& device : kDevices)
    if (!device.words.empty() && device.label != "9.0") others.push_back(device.label);
  if (devices == others) return "other GPUs";
  Labels shown;
  for (const std::string& device : devices) add_new(shown, device == "CPU" || device == "9.0" ? device : "others");
  return devices.size() + 1 >= kDevices.size() ? (shown.front() == "CPU" ? "all" : "every GPU") : joined(devices);
}

// Lines: for each row, devices with the same groups together; then rows that have the same ones.
struct Line {
  Labels rows, devices;
  Group group;
};
std::vector<Line> lines(const Matrix& m) {
  std::vector<Line> all;
  for (const Words& row : m.rows) {
    std::vector<Line> own;
    for (const Words& device : kDevices)
      for (const Group& group : groups(m, row, device.words)) {
        const auto same = std::ranges::find_if(
            own, [&](const Line& l) { return l.group.options == group.options && l.group.runs == group.runs; });
        if (same == own.end())
          own.push_back({{row.label}, {device.label}, group});
        else
          same->devices.push_back(device.label), add(same->group.reasons, group.reasons);
      }
    for (const Line& line : own) {
      const auto same = std::ranges::find_if(all, [&](const Line& l) {
        return l.devices == line.devices && l.group.options == line.group.options && l.group.runs == line.group.runs;
      });
      if (same == all.end())
        all.push_back(line);
      else
        same->rows.push_back(row.label), add(same->group.reasons, line.group.reasons);
    }
  }
  return all;
}

// "all but dropout" where that is shorter than the list.
std::string options_text(const Matrix& m, const Labels& options) {
  Labels left;
  for (const Words& option : m.options)
    if (std::ranges::find(options, option.label) == options.end()) left.push_back(option.label);
  if (left.empty()) return "all";
  const bool others_too = left.front() != m.options.front().label;
  return others_too && left.size() < options.size() ? "all but " + joined(left) : joined(options);
}

std::string table(const Matrix& m) {
  const bool options = m.options.size() > 1;
  std::string head = text("| ", m.rows_are, " | device |", options ? " options |" : ""), rule = "|---|---|";
  if (options) rule += "---|";
  for (const Words& column : m.columns) {
    const bool named = &column == &m.columns.front() && !m.columns_are.empty();
    head += text(" ", named ? m.columns_are + " " : "", column.label, " |"), rule += "---|";
  }
  Labels notes;
  std::string body;
  for (const Line& line : lines(m)) {
    const Group& g = line.group;
    body += text("| ", joined(line.rows), " | ", devices_text(line.devices), " |");
    if (options) body += text(" ", options_text(m, g.options), " |");
    for (std::size_t i = 0; i < m.columns.size(); ++i) {
      body += text(" ", g.runs[i]);
      if (const std::string note = told(g.reasons[i]); !note.empty()) {
        add_new(notes, note);
        body += text(" (", std::ranges::find(notes, note) - notes.begin() + 1, ")");
      }
      body += " |";
    }
    body += "\n";
  }
  std::string all = text("### ", m.title, "\n", head, "\n", rule, "\n", body, "\n");
  for (std::size_t i = 0; i < notes.size(); ++i) all += text(i + 1, ". ", notes[i], "\n");
  return all + (notes.empty() ? "" : "\n");
}

TEST(SupportMatrix, PageIsWhatTheImplementationsSay) {
  std::string all;
  for (const Matrix& m : kMatrices) all += table(m);
  expect_on_support_page("matrix", all);
}

}  // namespace
}  // namespace onepass::cuda
