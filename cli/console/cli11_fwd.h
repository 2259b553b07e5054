// Names of CLI11, for headers. Each file that includes CLI11 compiles all of it again.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
class Option;
class ParseError;
}  // namespace CLI
