#include "runtime/checkpoints/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "engine/base/errors.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/checkpoints/files/safetensors.h"
#include "runtime/control/together.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;

Buffer bytes_of(std::vector<char>& bytes) {
  return {.data = bytes.data(),
          .elements = static_cast<std::int64_t>(bytes.size()),
          .dtype = program::DType::u8};
}

/// Calls `move` with a buffer for each piece of a file, in order. Both ends cut it alike.
void in_pieces(std::int64_t bytes, const std::function<void()>& alive,
               const std::function<void(std::vector<char>&)>& move) {
  constexpr auto most = static_cast<std::int64_t>(file_piece);
  std::vector<char> piece;
  for (std::int64_t left = bytes; left > 0; left -= most) {
    piece.resize(static_cast<std::size_t>(std::min(left, most)));
    move(piece);
    alive();
  }
}

std::streamsize length_of(const std::vector<char>& piece) {
  return static_cast<std::streamsize>(piece.size());
}

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw BackendError(fmt::format("{}: cannot be {}", path, what));
}

void copy_file(const std::string& from, const std::string& to, std::int64_t bytes,
               const std::function<void()>& alive) {
  std::ifstream in(from, std::ios::binary);
  std::ofstream out(to, std::ios::binary);
  in_pieces(bytes, alive, [&](std::vector<char>& piece) {
    in.read(piece.data(), length_of(piece));
    out.write(piece.data(), length_of(piece));
  });
  if (!in) fail(from, "read");
  if (!out.flush()) fail(to, "written");
}

const HeldCheckpoint* find(const std::vector<HeldCheckpoint>& all, std::uint64_t identity) {
  const auto found = std::ranges::find(all, identity, &HeldCheckpoint::identity);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

void send_file(Communicator& between, const std::string& path, std::int64_t bytes, Id to,
               const std::function<void()>& alive) {
  std::ifstream in(path, std::ios::binary);
  in_pieces(bytes, alive, [&](std::vector<char>& piece) {
    in.read(piece.data(), length_of(piece));
    between.send(bytes_of(piece), static_cast<int>(to));
  });
  if (!in) fail(path, "read");
}

void receive_file(Communicator& between, const std::string& path, std::int64_t bytes, Id from,
                  const std::function<void()>& alive) {
  std::ofstream out(path, std::ios::binary);
  in_pieces(bytes, alive, [&](std::vector<char>& piece) {
    between.recv(bytes_of(piece), static_cast<int>(from));
    out.write(piece.data(), length_of(piece));
  });
  if (!out.flush()) fail(path, "written");
}

HeldByAll gather_held(const NodeStore& store, std::optional<std::int64_t> until, Control& control) {
  const auto rank = static_cast<Id>(control.environment().rank);
  const bool leads = store.leader_of(rank) == rank;
  HeldByAll held;
  for (const std::string& text :
       control.gather("checkpoints that nodes keep", leads ? to_json(held_in(store.root())) : "[]"))
    try {
      held.of_rank.push_back(held_from_json(text));
    } catch (const BackendError& error) {
      control.refuse(static_cast<Id>(held.of_rank.size()), error.what());
    }
  const std::string mine = until ? std::to_string(*until) : "";
  const std::string first = control.gather("last passed check", mine).front();
  held.newest =
      newest_of(held.of_rank, first.empty() ? std::nullopt : std::optional(std::stoll(first)));
  return held;
}

void collect(const NodeStore& store, const HeldByAll& held, Control& control, Communicator& between,
             LaneProgress& lane) {
  const auto rank = static_cast<Id>(control.environment().rank);
  std::vector<Id> leaders;
  std::map<std::string, std::int64_t> files;
  std::map<std::string, Id> source;  // the lowest leader that sees the file
  for (Id r = 0; r < held.of_rank.size(); ++r) {
    if (store.leader_of(r) != r) continue;
    leaders.push_back(r);
    const HeldCheckpoint* const seen = find(held.of_rank[r], held.newest->identity);
    if (seen == nullptr) continue;
    files = seen->files;
    for (const auto& [file, path] : seen->paths) source.emplace(file, r);
  }
  const auto seen_by = [&](Id leader, const std::string& file) {
    const HeldCheckpoint* const seen = find(held.of_rank[leader], held.newest->identity);
    const auto path = seen == nullptr ? decltype(seen->paths.end()){} : seen->paths.find(file);
    return seen == nullptr || path == seen->paths.end() ? std::string() : path->second;
  };
  // The manifest comes last: a folder without one is no checkpoint.
  std::vector<std::string> order;
  for (const auto& [file, bytes] : files)
    if (file != manifest_name) order.push_back(file);
  order.emplace_back(manifest_name);
  const auto alive = [&] { lane.pulse(); };
  const auto bring = [&] {
    lane.become(LaneState::communicating);
    for (const Id leader : leaders) {
      const fs::path folder = checkpoint_path(store.folder_of(leader), held.newest->step);
      if (leader == rank) fs::create_directories(folder);
      for (const std::string& file : order) {
        const std::string path = (folder / file).string(), here = seen_by(leader, file);
        const std::int64_t bytes = files.at(file);
        if (here.empty() && rank == source.at(file))
          send_file(between, seen_by(rank, file), bytes, leader, alive);
        else if (here.empty() && rank == leader)
          receive_file(between, path, bytes, source.at(file), alive);
        else if (std::error_code missing; rank == leader && !fs::equivalent(here, path, missing))
          copy_file(here, path, bytes, alive);
      }
    }
  };
  together(control, "checkpoint from nodes", bring, &lane);
}

}  // namespace rehearse::runtime
