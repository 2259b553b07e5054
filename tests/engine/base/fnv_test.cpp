// FNV-1a against published values.
#include "engine/base/fnv.h"

#include <gtest/gtest.h>

namespace rehearse {
namespace {

TEST(Fnv, IsTheHashOfFowlerNollAndVo) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cULL);  // their test vectors
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8ULL);
  EXPECT_EQ(hash_text(255), "00000000000000ff");
}

// A text counts with its length, and words with their lowest byte first.
TEST(Fnv, PartsDoNotRunTogether) {
  Fnv a, b, c, d;
  a.add(std::string("ab")), a.add(std::string("c"));
  b.add(std::string("a")), b.add(std::string("bc"));
  EXPECT_NE(a.value(), b.value());
  c.word(std::uint32_t{0x64636261}), d.bytes("abcd");
  EXPECT_EQ(c.value(), d.value());
  EXPECT_NE(Fnv(1).value(), Fnv(2).value());
}

}  // namespace
}  // namespace rehearse
