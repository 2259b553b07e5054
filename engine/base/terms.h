// Words of the field that this program does not take, and what to say of them: what is missing, or
// what it is called here. Without this, "did you mean" would lead from Mixtral to Mistral.
#pragma once
#include <string>
#include <string_view>

namespace rehearse {

/// In lower case, and with _ for -: names that differ in no more are the same.
std::string folded(std::string_view text);
/// A sentence about a key, a method or another name; empty: nothing is known of it.
std::string term_note(std::string_view word);
/// The same of a model. What follows its family does not count ("mixtral-8x7b").
std::string model_note(std::string_view name);

}  // namespace rehearse
