// Units are parsed, printed and parsed back; bits differ from bytes; nearest() finds the word that
// a misspelling means; nearest_divisor().

#include "engine/base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/numbers/divisors.h"
#include "engine/base/numbers/numbers.h"
#include "tests/message_of.h"

namespace rehearse {
namespace {

TEST(Units, BitsAreNotBytes) {
  EXPECT_DOUBLE_EQ(parse_bandwidth("100Gb/s").value, 12.5e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("100GB/s").value, 100e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("100 Gbps").value, 12.5e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("100GBps").value, 100e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("8bit/s").value, 1);
  EXPECT_DOUBLE_EQ(parse_bandwidth("2GiB/s").value, 2.0 * 1024 * 1024 * 1024);
}

TEST(Units, PrefixesAreDecimalOrBinary) {
  EXPECT_DOUBLE_EQ(parse_bytes("24GiB").value, 24.0 * (1 << 30));
  EXPECT_DOUBLE_EQ(parse_bytes("24GB").value, 24e9);
  EXPECT_DOUBLE_EQ(parse_bytes("3 KiB").value, 3072);
  EXPECT_DOUBLE_EQ(parse_bytes("3kB").value, 3000);
  EXPECT_DOUBLE_EQ(parse_bytes("1.5e3B").value, 1500);
  EXPECT_DOUBLE_EQ(parse_bytes(" 0B ").value, 0);
}

TEST(Units, TimesRatesAndPower) {
  EXPECT_DOUBLE_EQ(parse_seconds("2us").value, 2e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("2µs").value, 2e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("7ns").value, 7e-9);
  EXPECT_DOUBLE_EQ(parse_seconds("1.5 ms").value, 1.5e-3);
  EXPECT_DOUBLE_EQ(parse_seconds("2min").value, 120);
  EXPECT_DOUBLE_EQ(parse_seconds("54d").value, 54 * 86400.0);
  EXPECT_DOUBLE_EQ(parse_seconds("1h").value, 3600);
  EXPECT_DOUBLE_EQ(parse_flop_rate("82.6TFLOP/s").value, 82.6e12);
  EXPECT_DOUBLE_EQ(parse_flop_rate("1PFLOPS").value, 1e15);
  EXPECT_DOUBLE_EQ(parse_flops("2.5GFLOP").value, 2.5e9);
  EXPECT_DOUBLE_EQ(parse_watts("450W").value, 450);
  EXPECT_DOUBLE_EQ(parse_watts("6.5kW").value, 6500);
}

TEST(Units, ErrorsNameWhatWouldFit) {
  EXPECT_EQ(test::message_of([] { parse_bandwidth("100GB"); }),
            "\"100GB\" is not a bandwidth: unit \"GB\" does not fit; units that fit: "
            "bytes: B/s, MB/s, GB/s, GiB/s; bits: b/s, Mb/s, Gb/s, Tb/s");
  EXPECT_EQ(test::message_of([] { parse_bytes("24Gb"); }),
            "\"24Gb\" is not a size in bytes: unit \"Gb\" does not fit; units that fit: "
            "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (b would be bits)");
  EXPECT_EQ(test::message_of([] { parse_seconds("2"); }),
            "\"2\" is not a duration: it has no unit; units that fit: ns, us, ms, s, min, h, d");
  for (const char* bad : {"", "s", "nans", "1e999s", "infs", "2 m s", "2ks", "2minn", "-"})
    EXPECT_THROW(parse_seconds(bad), InputError) << bad;
  for (const char* bad : {"1iB", "1miB", "1Ki", "1TTB", "1B/s", "GB"})
    EXPECT_THROW(parse_bytes(bad), InputError) << bad;
  for (const char* bad : {"1GiFLOP/s", "1GFLOP", "1W"})
    EXPECT_THROW(parse_flop_rate(bad), InputError) << bad;
}

TEST(Units, PrintThreeSignificantDigits) {
  EXPECT_EQ(to_text(Bytes(1.25e9)), "1.25 GB");
  EXPECT_EQ(to_text(Bytes(999.6)), "1 kB");
  EXPECT_EQ(to_text(Bytes(999)), "999 B");
  EXPECT_EQ(to_text(Bytes(0)), "0 B");
  EXPECT_EQ(to_text(Seconds(3.2e-3)), "3.2 ms");
  EXPECT_EQ(to_text(Seconds(0.8123)), "812 ms");
  EXPECT_EQ(to_text(Seconds(42)), "42 s");
  EXPECT_EQ(to_text(Seconds(90)), "1.5 min");
  EXPECT_EQ(to_text(Seconds(7200)), "2 h");
  EXPECT_EQ(to_text(Seconds(360000)), "100 h");
  EXPECT_EQ(to_text(Seconds(-0.002)), "-2 ms");
  EXPECT_EQ(to_text(BytesPerSecond(12.5e9)), "12.5 GB/s");
}

TEST(Units, WhatIsPrintedCanBeReadBack) {
  for (double v = 1.2345e-8; v < 1e5; v *= 3.7) {
    EXPECT_NEAR(parse_seconds(to_text(Seconds(v))).value, v, 0.0051 * v) << v;
    EXPECT_NEAR(parse_bytes(to_text(Bytes(v * 1e8))).value, v * 1e8, 0.0051 * v * 1e8) << v;
    EXPECT_NEAR(parse_bandwidth(to_text(BytesPerSecond(v * 1e8))).value, v * 1e8, 0.0051 * v * 1e8);
  }
}

TEST(Nearest, FindsWhatWasMeant) {
  const std::vector<std::string> keys{"micro_batches", "global_batch", "bucket", "pp", "dp", "tp"};
  EXPECT_EQ(nearest("microbatches", keys), "micro_batches");
  EXPECT_EQ(nearest("Micro-Batches", keys), "micro_batches");
  EXPECT_EQ(nearest("bukcet", keys), "bucket");
  EXPECT_EQ(nearest("batch", keys), "global_batch");
  EXPECT_EQ(nearest("batch", {"eval_batches", "global_batch"}), "global_batch");
  EXPECT_EQ(nearest("pq", keys), "pp");
  EXPECT_EQ(nearest("learning_rate", keys), "");
  EXPECT_EQ(nearest("x", {}), "");
  // A word of another program has a note of its own (terms.h), but not where it is meant as it is.
  EXPECT_EQ(nearest("fp16", keys), "");
  EXPECT_EQ(nearest("FP16", {"fp32", "bf16", "fp16"}), "fp16");
}

TEST(Units, JoulesAndNoNegativeNothing) {
  EXPECT_EQ(to_text(Watts(450) * Seconds(2)), "900 J");
  EXPECT_EQ(to_text(Joules(31250)), "31.2 kJ");
  EXPECT_EQ(to_text(Seconds(-0.0)), "0 ns");
  EXPECT_EQ(fixed(-0.0004, 1), "0.0");
  EXPECT_EQ(fixed(-0.04, 2), "-0.04");
  EXPECT_EQ(fixed(-0.0, 0), "0");
  EXPECT_EQ(percent(-1e-9, 1), "0.0%");
  EXPECT_EQ(percent(-0.125, 1), "-12.5%");
  EXPECT_THAT(test::message_of([] { parse_bytes("1e308EB"); }), testing::HasSubstr("not finite"));
}

TEST(Units, TheNearestDivisor) {
  EXPECT_EQ(nearest_divisor(25, 3), 1);  // 1 and 5 are equally near: the smaller one
  EXPECT_EQ(nearest_divisor(25, 4), 5);
  EXPECT_EQ(nearest_divisor(12, 5), 4);
  EXPECT_EQ(nearest_divisor(12, 100), 12);
  EXPECT_EQ(nearest_divisor(7, 2147483647), 7);
}

}  // namespace
}  // namespace rehearse
