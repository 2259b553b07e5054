// Where the program lies and the files that ship with it (platforms/, models/, plots/): below the
// folder named by the environment variable REHEARSE_DATA_DIR, else share/rehearse beside the folder
// of an installed program, wherever that was moved to, else the source folder it was built from.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace rehearse {

/// Path of this program, its symbolic links followed.
std::filesystem::path own_path();
/// Path of a library that is loaded on demand: beside the program or in the lib folder next to its
/// own, where it is built and installed. Empty when it is in neither.
std::filesystem::path find_module(const std::string& file);

std::filesystem::path data_dir();
/// The file that a user means by a name or a path: "paper" is FOLDER/paper.toml of the data folder;
/// a text that ends in ".toml" or has a slash is a path. Throws InputError that calls the thing
/// `what` ("cluster") and names the nearest known one. `hidden`: files there that are no such
/// thing.
std::filesystem::path find_data(const std::string& folder, const std::string& name_or_path,
                                const std::string& what, const std::string& hidden = {});
/// Names of the TOML files in a folder of the data folder, sorted. Empty when there is no folder.
std::vector<std::string> data_names(const std::string& folder);

}  // namespace rehearse
