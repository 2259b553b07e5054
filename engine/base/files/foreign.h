// Files of other programs in the place of ours: they are named, with the way to use them.
#pragma once
#include <string>
#include <string_view>

namespace rehearse {

/// Throws InputError that begins with `file` when another program wrote the text in a format that
/// nothing here reads.
void refuse_foreign(std::string_view text, const std::string& file);
/// The same, also for measurements, which only `rehearse calibrate` reads.
void refuse_measurements(std::string_view text, const std::string& file);
/// Throws InputError that begins with `file` when the text, which is not TOML, is of another syntax
/// or encoding that people write such files in.
void refuse_other_syntax(std::string_view text, const std::string& file);

}  // namespace rehearse
