// Training text: memory-mapped token shards in llm.c's format (github.com/karpathy/llm.c). A shard
// is 256 little-endian i32 (magic 20240520, version 1, number of tokens, rest unused), then u16
// tokens. It is cut into windows that share one token (here seq_len is 4):
//
//   tokens  0 1 2 3 4 5 6 7 8 9 ...
//           |-------|                 window 0: inputs 0 to 3, next tokens 1 to 4
//                   |-------|         window 1: inputs 4 to 7, next tokens 5 to 8
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rehearse::runtime {

/// The token shards of one side (training or validation), as one sequence of windows. A window has
/// seq_len inputs and one token more, the label of its last position. It does not cross a shard's
/// end.
class Shards {
 public:
  /// Maps the files, in this order. Throws InputError that names the file when it is missing, no
  /// shard, of another version or truncated, or when all files together have no window.
  Shards(const std::vector<std::string>& files, int seq_len);
  Shards(Shards&&) noexcept;
  Shards& operator=(Shards&&) noexcept;
  ~Shards();

  std::int64_t windows() const { return windows_; }
  std::int64_t tokens() const { return tokens_; }
  /// The first window of the file at this place, or `windows()` behind the last one.
  std::int64_t first_window(std::size_t file) const;
  /// The seq_len + 1 tokens of a window.
  std::span<const std::uint16_t> window(std::int64_t index) const;

 private:
  struct Mapping;
  std::vector<Mapping> mappings_;
  std::int64_t windows_ = 0, tokens_ = 0;
  int seq_len_ = 0;
};

}  // namespace rehearse::runtime
