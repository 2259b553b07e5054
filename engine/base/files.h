// Reads and writes whole files. A written file is complete; when writing failed, the old file is
// unchanged.
#pragma once
#include <string>

namespace rehearse {

/// Writes a temporary file beside `path` and renames it. Throws BackendError when that fails; then
/// the old file at `path` is unchanged. Devices such as /dev/stdout are written directly.
void write_file(const std::string& path, const std::string& text);
/// The contents of a file. Throws InputError when the file cannot be read.
std::string read_file(const std::string& path);

}  // namespace rehearse
