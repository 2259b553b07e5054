// Where the files that ship with the program lie (platforms/, models/): below the folder named by
// the environment variable REHEARSE_DATA_DIR, else below the source folder it was built from.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace rehearse {

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
