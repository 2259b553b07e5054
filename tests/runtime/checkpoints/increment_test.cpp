// Incremental checkpoints: what is read is what was saved, or differs by no more than is said; and
// every change to one of their files, or to the base's, is refused by name.

#include "runtime/checkpoints/files/increment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/checkpoints/files/run_folder.h"
#include "runtime/kernels/floats.h"
#include "tests/message_of.h"
#include "tests/runtime/scratch.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;
using program::DType;
using tensors::PartKey;
using tensors::StorageKind;
using testing::AllOf;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;

PartKey key_of(StorageKind kind, std::int64_t elements) {
  return {.kind = kind, .tensor = "wte.weight", .begin = 0, .end = elements};
}

Bytes bytes_of(const std::vector<float>& values, DType dtype) {
  Bytes out(values.size() * static_cast<std::size_t>(size_of(dtype)));
  if (dtype == DType::f32)
    std::memcpy(out.data(), values.data(), out.size());
  else
    store_f32(values.data(), static_cast<std::int64_t>(values.size()), out.data(), dtype, 0);
  return out;
}
std::vector<float> floats_in(const Bytes& bytes, DType dtype) {
  std::vector<float> out(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  const float* const values =
      as_f32(bytes.data(), dtype, 0, static_cast<std::int64_t>(out.size()), out.data());
  return {values, values + out.size()};
}

std::vector<float> drawn(std::size_t count, double size, unsigned seed) {
  std::mt19937 draw(seed);
  std::vector<float> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(static_cast<float>(size * (2.0 * draw() / 4294967295.0 - 1)));
  return out;
}

/// A part saved as increment and read again.
struct Saved {
  TensorTable table = {};
  std::list<Bytes> kept = {};
  Change change = {};
  Bytes read = {};
};
Saved save(const PartKey& key, DType dtype, const Bytes& before, const Bytes& now, int bits) {
  IncrementBase base;
  base.keep(key, dtype, before, bits);
  Saved s;
  s.change = add_changes(key, dtype, now, base.parts.at(key), bits, s.table, s.kept);
  s.read = with_changes(key, {.dtype = dtype, .shape = {key.end}, .data = before}, s.table, "file");
  return s;
}

TEST(Increment, HasTheChunksThatChanged) {
  const PartKey key = key_of(StorageKind::moment2, 1000);  // 3.9 chunks
  const Bytes before = bytes_of(drawn(1000, 1, 1), DType::f32);
  Bytes now = before;
  EXPECT_TRUE(save(key, DType::f32, before, now, 0).table.empty());
  now[1024] = now[1024] ^ std::byte{1};  // chunk 1
  now[3999] = now[3999] ^ std::byte{1};  // chunk 3, of 928 bytes
  for (const int bits : {0, 8, 16}) {
    const Saved s = save(key, DType::f32, before, now, bits);
    EXPECT_EQ(s.read, now) << "second moments stay exact";
    EXPECT_EQ(s.change.bytes, 4000);
    EXPECT_EQ(s.change.changed_bytes, 1024 + 928);
    EXPECT_EQ(s.change.error, 0);
    EXPECT_EQ(s.table.at(key.text()).data.size(), 1024U + 928U);
  }
  const Bytes other = bytes_of(drawn(1000, 1, 2), DType::f32);
  const Saved all = save(key, DType::f32, before, other, 0);
  EXPECT_EQ(all.read, other);
  EXPECT_EQ(all.table.size(), 1U) << "no list of chunks";
}

TEST(Increment, OfRoundedDifferencesKeepsTheBoundThatItStates) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const int bits : {8, 16}) {
      const PartKey key = key_of(StorageKind::param, 1000);
      const std::vector<float> weights = drawn(1000, 0.5, 3), steps = drawn(1000, 0.01, 4);
      std::vector<float> moved = weights;
      for (std::size_t i = 0; i < moved.size(); ++i)
        if (i < 256 || i >= 512) moved[i] += steps[i];
      const Bytes before = bytes_of(weights, dtype), now = bytes_of(moved, dtype);
      const Saved s = save(key, dtype, before, now, bits);
      const std::vector<float> was = floats_in(before, dtype), is = floats_in(now, dtype),
                               read = floats_in(s.read, dtype);
      const bool shorter = bits < 8 * size_of(dtype);
      EXPECT_EQ(s.table.contains(key.text() + "#codes"), shorter);
      double worst = 0, difference = 0;
      for (std::size_t i = 0; i < is.size(); ++i) {
        worst = std::max(worst, std::abs(double{read[i]} - double{is[i]}));
        difference = std::max(difference, std::abs(double{is[i]} - double{was[i]}));
      }
      EXPECT_DOUBLE_EQ(s.change.error, worst);
      if (!shorter) {
        EXPECT_EQ(worst, 0) << bits << " bits of " << bits;
        continue;
      }
      EXPECT_GT(worst, 0);
      // Half a code, and half a unit in the last place of a number below 1.
      const double rounding = dtype == DType::f32    ? 0x1p-24
                              : dtype == DType::bf16 ? 0x1p-9
                                                     : 0x1p-12;
      EXPECT_LE(worst, difference / ((1 << (bits - 1)) - 1) / 2 * 1.0001 + rounding);
      EXPECT_NEAR(s.change.relative_error, worst / 0.5, 0.05 * worst);
    }
}

TEST(Increment, OfNumbersThatBecameSmallIsAsFineAsTheyAre) {
  const PartKey key = key_of(StorageKind::moment1, 256);
  const Bytes before = bytes_of(drawn(256, 1, 8), DType::f32), zero(1024);
  const Bytes now = bytes_of(drawn(256, 1e-3, 9), DType::f32);
  const Saved s = save(key, DType::f32, before, now, 8);
  EXPECT_GT(s.change.error, 0);
  EXPECT_LE(s.change.error, 1e-3 / 254 * 1.0001);
  EXPECT_EQ(save(key, DType::f32, before, zero, 8).read, zero);
}

TEST(Increment, OfNumbersThatAreNotFiniteIsExact) {
  const PartKey key = key_of(StorageKind::moment1, 300);
  const std::vector<float> before = drawn(300, 1, 5);
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> now = before;
    now[7] += 1, now[280] = odd;
    const Bytes is = bytes_of(now, DType::f32);
    const Saved s = save(key, DType::f32, bytes_of(before, DType::f32), is, 8);
    EXPECT_EQ(s.read, is);
    EXPECT_FALSE(s.table.contains(key.text() + "#codes"));
  }
}

TEST(Increment, WithImpossibleEntriesIsRefused) {
  const PartKey key = key_of(StorageKind::param, 1000);
  const std::string name = key.text();
  const Bytes before = bytes_of(drawn(1000, 1, 6), DType::f32);
  const Bytes some(1024), codes(256), scales(4);
  const std::int32_t third = 3, far = 4, negative = -1;
  const auto number = [](const std::int32_t& n) {
    return TensorEntry{.dtype = DType::i32, .shape = {1}, .data = std::as_bytes(std::span(&n, 1))};
  };
  const TensorEntry exact{.dtype = DType::f32, .shape = {256}, .data = some};
  const TensorEntry code{.dtype = DType::u8, .shape = {256}, .data = codes};
  const TensorEntry scale{.dtype = DType::f32, .shape = {1}, .data = scales};
  const std::vector<TensorTable> tables{
      {{name, exact}},                                        // all chunks need more
      {{name, exact}, {name + "#chunks", number(third)}},     // the last chunk is shorter
      {{name, exact}, {name + "#chunks", number(far)}},       // there are four
      {{name, exact}, {name + "#chunks", number(negative)}},  //
      {{name, exact}, {name + "#chunks", scale}},             //
      {{name + "#chunks", number(third)}},                    // of what
      {{name + "#codes", code}},                              // without scales
      {{name, exact}, {name + "#codes", code}, {name + "#scales", scale}},
      {{name + "#codes", code}, {name + "#scales", scale}},
      {{name + "#codes", code}, {name + "#scales", code}}};
  for (std::size_t i = 0; i < tables.size(); ++i)
    EXPECT_THAT(
        test::message_of([&] {
          with_changes(key, {.dtype = DType::f32, .shape = {1000}, .data = before}, tables[i],
                       "out/rank-00000.safetensors");
        }),
        AllOf(HasSubstr("out/rank-00000.safetensors: what has changed of"), HasSubstr(name)))
        << i;
}

std::string text_in(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A folder with a whole checkpoint after two steps and an increment after four.
class IncrementFolder : public testing::Test {
 protected:
  void SetUp() override {
    Manifest m{.step = 2,
               .own_steps = {std::nullopt},
               .method = "ddp",
               .model = "gpt-tiny",
               .mesh = {{.name = "dp", .size = 1}}};
    m.shards.push_back({.file = shard_name(0), .parts = {key_}});
    fs::create_directories(base_);
    m.shards[0].sum = write_safetensors(
        base_ + "/" + shard_name(0),
        {{key_.text(), {.dtype = DType::f32, .shape = {key_.end}, .data = before_}}});
    write(base_, m);
    IncrementBase base;
    base.keep(key_, DType::f32, before_, 0);
    TensorTable table;
    std::list<Bytes> kept;
    add_changes(key_, DType::f32, now_, base.parts.at(key_), 0, table, kept);
    fs::create_directories(increment_);
    m.shards[0].sum = write_safetensors(increment_ + "/" + shard_name(0), table);
    m.base = BaseRecord{.step = 2,
                        .checksum = read_manifest(base_).checksum,
                        .changed = 0.5,
                        .error = 0.25,
                        .relative_error = 0.125};
    m.step = 4;
    write(increment_, m);
  }
  static void write(const std::string& folder, const Manifest& m) {
    write_durably(folder + "/" + manifest_name, to_text(m));
  }
  /// What reading the checkpoint says, checksums of all files first.
  static std::string error_of(const std::string& checkpoint) {
    return test::message_of([&] {
      CheckpointReader reader(checkpoint);
      reader.verify(0);
    });
  }
  void changes_are_seen(const std::string& path, int bits) {
    const std::string good = text_in(path);
    for (std::size_t at = 0; at < good.size(); ++at)
      for (int bit = 0; bit < bits; ++bit) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ (1 << (bits == 8 ? bit : static_cast<int>(at % 8))));
        write_text(path, bad);
        ASSERT_THAT(error_of(increment_), HasSubstr(path)) << "byte " << at << ", bit " << bit;
      }
    write_text(path, good);
    EXPECT_EQ(error_of(increment_), "no error");
  }

  ScratchFolder out_;
  const std::string base_ = out_.file("step-00000002"), increment_ = out_.file("step-00000004");
  const PartKey key_ = key_of(StorageKind::param, 600);
  const Bytes before_ = bytes_of(drawn(600, 1, 7), DType::f32);
  const Bytes now_ = [this] {
    Bytes now = before_;
    now[1500] = now[1500] ^ std::byte{4};
    return now;
  }();
};

TEST_F(IncrementFolder, IsReadWithItsBase) {
  CheckpointReader reader(increment_ + "/");
  EXPECT_EQ(reader.whole(StorageKind::param, "wte.weight", 1, 0, nullptr, DType::f32), now_);
  EXPECT_EQ(reader.dtype_of(StorageKind::param, "wte.weight"), DType::f32);
  EXPECT_EQ(reader.manifest().base->changed, 0.5);
  EXPECT_EQ(to_text(reader.manifest()), text_in(increment_ + "/manifest.json"));
  std::vector<PassedOver> passed;
  EXPECT_EQ(newest_whole_checkpoint(out_.path(), passed), increment_);
}

TEST_F(IncrementFolder, EveryChangedByteIsRefusedByName) {
  changes_are_seen(increment_ + "/manifest.json", 8);
  changes_are_seen(increment_ + "/" + shard_name(0), 1);
  changes_are_seen(base_ + "/manifest.json", 1);
  changes_are_seen(base_ + "/" + shard_name(0), 1);
}

TEST_F(IncrementFolder, WithoutItsBaseIsRefusedByName) {
  const std::string shard = base_ + "/" + shard_name(0), manifest = base_ + "/manifest.json";
  const std::string good = text_in(shard);
  fs::remove(shard);
  EXPECT_THAT(error_of(increment_),
              AllOf(HasSubstr(increment_ + "/manifest.json: it has what changed since step 2"),
                    HasSubstr(shard)));
  write_text(shard, good);
  // Another checkpoint of the same step.
  Manifest other = read_manifest(base_);
  const std::string text = text_in(manifest);
  other.seed += 1;
  write(base_, other);
  EXPECT_THAT(error_of(increment_), AllOf(HasSubstr(increment_), HasSubstr(manifest),
                                          HasSubstr("its checksum is another one")));
  // One that is no base.
  other = read_manifest(increment_);
  other.step = 2, other.base->step = 1;
  write(base_, other);
  Manifest pointing = read_manifest(increment_);
  pointing.base->checksum = read_manifest(base_).checksum;
  write(increment_, pointing);
  EXPECT_THAT(error_of(increment_), HasSubstr("it is no whole checkpoint"));
  other.base.reset();
  other.shards[0].parts[0].end = 300;
  write(base_, other);
  pointing.base->checksum = read_manifest(base_).checksum;
  write(increment_, pointing);
  EXPECT_THAT(error_of(increment_), HasSubstr("it has other parts"));
  fs::remove_all(base_);
  EXPECT_THAT(error_of(increment_), AllOf(HasSubstr(increment_), HasSubstr(manifest)));
  std::vector<PassedOver> passed;
  EXPECT_EQ(newest_whole_checkpoint(out_.path(), passed), "");
  ASSERT_EQ(passed.size(), 1U);
  EXPECT_THAT(describe(passed[0]), AllOf(HasSubstr("passed over"), HasSubstr(manifest)));
}

TEST_F(IncrementFolder, KeepsTheBaseThatItNeeds) {
  const auto add = [&](int step, const Manifest& like, const std::string& shard) {
    Manifest m = like;
    m.step = step;
    const std::string folder = checkpoint_path(out_.path(), step);
    fs::create_directories(folder);
    write_text(folder + "/" + shard_name(0), shard);
    write(folder, m);
    keep_newest(out_.path());
    return folder;
  };
  const Manifest increment = read_manifest(increment_), whole = read_manifest(base_);
  const std::string changes = text_in(increment_ + "/" + shard_name(0)),
                    all = text_in(base_ + "/" + shard_name(0));
  for (int step = 5; step <= 8; ++step) {
    EXPECT_EQ(error_of(add(step, increment, changes)), "no error");
    EXPECT_EQ(checkpoints_in(out_.path()).size(), 3U);
  }
  // Two whole ones follow; the second needs nothing more than itself.
  add(9, whole, all);
  EXPECT_EQ(error_of(checkpoint_path(out_.path(), 8)), "no error");
  add(10, whole, all);
  EXPECT_EQ(checkpoints_in(out_.path()).size(), 2U);
}

}  // namespace
}  // namespace rehearse::runtime
