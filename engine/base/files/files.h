// Reads and writes whole files. A written file is complete; when writing failed, the old file is
// unchanged.
#pragma once
#include <string>

namespace rehearse {

/// Writes a temporary file beside `path` and renames it. Throws BackendError when that fails; then
/// the old file at `path` is unchanged. Devices such as /dev/stdout are written directly.
void write_file(const std::string& path, const std::string& text);
/// The contents of a file. Throws InputError when the file cannot be read, or is to be written.
std::string read_file(const std::string& path);
/// Says that the option `flag` writes the file. Throws InputError when this process has read it, or
/// when another option writes it; when the process reads it later, read_file throws. So no output
/// replaces an input or another output.
void will_write(const std::string& flag, const std::string& path);
/// Says that this process reads the file, by other means than read_file. Throws as read_file does.
void will_read(const std::string& path);

}  // namespace rehearse
