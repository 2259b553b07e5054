// CMake passes the source folder to this file only, as REHEARSE_SOURCE_DIR.
#include "engine/base/files/data_dir.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/base/errors.h"
#include "engine/base/files/foreign.h"
#include "engine/base/hints.h"
#include "engine/base/terms.h"

namespace rehearse {

namespace fs = std::filesystem;

namespace {

/// The nearest name with the same digits: "llama-13b" is no typo of "llama-7b".
std::string nearest_of_size(const std::string& name, std::vector<std::string> known) {
  const auto digits = [](const std::string& text) {
    std::string out;
    for (const char c : text)
      if (c >= '0' && c <= '9') out += c;
    std::ranges::sort(out);
    return out;
  };
  std::erase_if(known, [&](const std::string& one) { return digits(one) != digits(name); });
  return nearest(name, known);
}

/// Whether the name could be "owner/model" on the Hugging Face hub.
bool is_of_hub(const std::string& name) {
  return std::ranges::count(name, '/') == 1 && name.find_first_of("./") != 0 &&
         !name.ends_with(".toml") && !name.ends_with(".json");
}

/// Where a relative path was looked for.
std::string looked_in(const fs::path& path) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  return path.is_absolute() || error
             ? ""
             : fmt::format("; paths are relative to the working directory, {}", here.string());
}

}  // namespace

fs::path own_path() { return fs::read_symlink("/proc/self/exe"); }

namespace {

/// The library that this code is linked into, or else the program.
fs::path library_path() {
  Dl_info ignored;
  void* found = nullptr;
  const int known =
      dladdr1(reinterpret_cast<void*>(&library_path), &ignored, &found, RTLD_DL_LINKMAP);
  const std::string name = known != 0 ? static_cast<const link_map*>(found)->l_name : "";
  std::error_code error;
  const fs::path path = fs::canonical(name, error);
  return name.empty() || error ? own_path() : path;
}

}  // namespace

fs::path find_module(const std::string& file) {
  const fs::path folder = own_path().parent_path();
  std::error_code ignored;
  for (const char* place : {"../lib/rehearse", "../lib", "."}) {
    const fs::path path = folder / place / file;
    if (fs::exists(path, ignored)) return path.lexically_normal();
  }
  return {};
}

fs::path data_dir() {
  if (const char* const dir = std::getenv("REHEARSE_DATA_DIR"); dir != nullptr && *dir != '\0')
    return dir;
  std::error_code ignored;
  const fs::path installed = library_path().parent_path() / "../share/rehearse";
  return fs::is_directory(installed, ignored) ? installed.lexically_normal() : REHEARSE_SOURCE_DIR;
}

fs::path find_data(const std::string& folder, const std::string& name_or_path,
                   const std::string& what, const std::string& hidden) {
  std::error_code ignored;
  if (name_or_path.ends_with(".toml") || name_or_path.find('/') != std::string::npos) {
    if (!fs::is_regular_file(name_or_path, ignored))
      throw InputError(fmt::format("{} file \"{}\" does not exist{}{}", what, name_or_path,
                                   what == "model" && is_of_hub(name_or_path)
                                       ? "; of a model of the Hugging Face hub, download "
                                         "config.json and give its path"
                                       : "",
                                   looked_in(name_or_path)));
    return name_or_path;
  }
  fs::path path = data_dir() / folder / (name_or_path + ".toml");
  if (!name_or_path.empty() && name_or_path != hidden && fs::is_regular_file(path, ignored))
    return path;
  if (fs::is_regular_file(name_or_path, ignored)) {
    std::ostringstream text;
    text << std::ifstream(name_or_path, std::ios::binary).rdbuf();
    refuse_measurements(text.str(), name_or_path);
  }
  std::vector<std::string> known = data_names(folder);
  std::erase(known, hidden);
  if (known.empty())
    throw InputError(fmt::format("{} \"{}\": no {} in {} (REHEARSE_DATA_DIR says where to look)",
                                 what, name_or_path, folder, data_dir().string()));
  std::string note = what == "model" ? model_note(name_or_path) : "";
  if (note.empty() && !name_or_path.empty()) note = sizes_of({name_or_path}, known);
  const std::string near = note.empty() ? nearest_of_size(name_or_path, known) : "";
  throw InputError(fmt::format(
      "{} \"{}\" is not known{}; {}known: {}; or a path that ends in .toml", what, name_or_path,
      note.empty() ? "" : ": " + note,
      near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near), fmt::join(known, ", ")));
}

std::vector<std::string> data_names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(data_dir() / folder, ignored))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace rehearse
