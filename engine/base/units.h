// Quantities with a unit in their type. Bytes / BytesPerSecond is Seconds; adding Bytes to Seconds
// does not compile. Values are in base units (s, B, FLOP, B/s, FLOP/s, W, J). Text such as
// "100Gb/s" or "24GiB" is parsed once, when a file is read.
#pragma once
#include <compare>
#include <string>
#include <string_view>

namespace rehearse {

template <class Dim>
struct Quantity {
  double value = 0;
  constexpr Quantity() = default;
  constexpr explicit Quantity(double v) : value(v) {}
  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(double k, Quantity a) { return Quantity(k * a.value); }
  friend constexpr Quantity operator*(Quantity a, double k) { return Quantity(k * a.value); }
  friend constexpr Quantity operator/(Quantity a, double k) { return Quantity(a.value / k); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value / b.value; }
  constexpr Quantity& operator+=(Quantity b) { return value += b.value, *this; }
  constexpr Quantity& operator-=(Quantity b) { return value -= b.value, *this; }
};
using Seconds = Quantity<struct SecondsDim>;
using Bytes = Quantity<struct BytesDim>;
using Flops = Quantity<struct FlopsDim>;
using BytesPerSecond = Quantity<struct BytesPerSecondDim>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondDim>;
using Watts = Quantity<struct WattsDim>;
using Joules = Quantity<struct JoulesDim>;

constexpr Joules operator*(Watts a, Seconds b) { return Joules(a.value * b.value); }
constexpr Seconds operator/(Bytes a, BytesPerSecond b) { return Seconds(a.value / b.value); }
constexpr Seconds operator/(Flops a, FlopsPerSecond b) { return Seconds(a.value / b.value); }

/// Parse "12.5GB/s", "100Gb/s" (bits), "24GiB", "2us", "82.6TFLOP/s", "450W". Prefixes may be
/// decimal or, for bytes and bits, binary. Throw InputError with the units that fit when the text
/// is not a finite number with a unit of this dimension.
Seconds parse_seconds(std::string_view text);
Bytes parse_bytes(std::string_view text);
BytesPerSecond parse_bandwidth(std::string_view text);
Flops parse_flops(std::string_view text);
FlopsPerSecond parse_flop_rate(std::string_view text);
Watts parse_watts(std::string_view text);

/// Text for people, with three significant digits: "1.25 GB", "3.2 ms".
std::string to_text(Seconds s);
std::string to_text(Bytes b);
std::string to_text(BytesPerSecond b);
std::string to_text(Joules j);

}  // namespace rehearse
