// Files for tests of the runtime: a temporary folder, token shards, small text files.
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace rehearse::runtime {

/// A new folder that the destructor removes. Its name is not made of the process's number: numbers
/// come again, and a test that was killed leaves its folder behind.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "rehearse_test_XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr)
      throw std::system_error(errno, std::generic_category(), "cannot make " + path);
    path_ = path;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void write_shard(const std::string& path, const std::vector<std::uint16_t>& tokens,
                        std::int32_t magic = 20240520, std::int32_t version = 1) {
  std::vector<std::int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = static_cast<std::int32_t>(tokens.size());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), 1024);
  file.write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(2 * tokens.size()));
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

/// Tokens with the structure of text: a few are frequent, and most are determined by the token
/// before them, so that a model learns something in twenty steps.
inline std::vector<std::uint16_t> learnable_tokens(int count, int vocab) {
  std::vector<std::uint16_t> tokens(count);
  std::uint64_t state = 12345;
  for (int i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto noise = static_cast<int>((state >> 33) % 8);
    const auto wild = static_cast<int>((state >> 40) % static_cast<unsigned>(vocab));
    tokens[i] =
        static_cast<std::uint16_t>(i == 0 || noise == 0 ? wild : (tokens[i - 1] * 5 + 3) % 16);
  }
  return tokens;
}

}  // namespace rehearse::runtime
