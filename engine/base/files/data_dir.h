// Finds the program itself and the files that ship with it (platforms/, models/, plots/). The data
// folder is, in this order: the environment variable REHEARSE_DATA_DIR; ../share/rehearse seen from
// the program's folder, so an installation can be moved; the source folder of the build.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace rehearse {

/// Path of this program, with symbolic links resolved.
std::filesystem::path own_path();
/// Path of a library that is loaded on demand. Looks in ../lib/rehearse and ../lib (installed),
/// then beside the program (built). Empty when the library is in none of them.
std::filesystem::path find_module(const std::string& file);

std::filesystem::path data_dir();
/// The file that a user means by a name or a path: "paper" is FOLDER/paper.toml in the data folder;
/// a text that ends in ".toml" or contains a slash is a path. `what` is the word for the file in
/// messages ("cluster"). `hidden` is the name of a file in the folder that users cannot choose.
/// Throws InputError that names the nearest known file.
std::filesystem::path find_data(const std::string& folder, const std::string& name_or_path,
                                const std::string& what, const std::string& hidden = {});
/// Names of the TOML files in `folder` of the data folder, sorted; empty when it does not exist.
std::vector<std::string> data_names(const std::string& folder);

}  // namespace rehearse
